package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
)

func newTaskLogsCommand(c *cli) *cobra.Command {
	var number int
	var follow bool
	cmd := c.onTask("logs", "Print an attempt's log", func(ctx context.Context, api *client.Client, id string) error {
		return c.logs(ctx, api, id, number, follow)
	})
	cmd.Flags().IntVar(&number, "attempt", 0, "number of the attempt (default: the last one)")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the attempt is over")
	return cmd
}

func (c *cli) logs(ctx context.Context, api *client.Client, id string, number int, follow bool) (err error) {
	if number == 0 {
		if number, err = c.attemptNumber(ctx, api, id, follow); err != nil {
			return err
		}
		if number == 0 {
			c.say("The task has no attempt yet, so there is no log. -f waits for one.")
			return nil
		}
	}
	out := c.screen()
	defer func() { err = errors.Join(err, out.Close()) }()
	for offset := int64(0); ; {
		piece, err := api.ReadLog(ctx, id, number, offset, follow)
		if err != nil {
			return err
		}
		if _, err := out.Write(piece.Bytes); err != nil {
			return err
		}
		offset = piece.Next
		if piece.Ended || !follow && len(piece.Bytes) == 0 {
			return nil
		}
	}
}

// attemptNumber is the last attempt's; with wait it waits for the first one. 0:
// there is none, and with wait there will be none.
func (c *cli) attemptNumber(ctx context.Context, api *client.Client, id string, wait bool) (int, error) {
	for said := false; ; {
		a, err := lastAttempt(ctx, api, id)
		if err != nil || a != nil {
			return numberOf(a), err
		}
		if !wait {
			return 0, nil
		}
		if !said {
			c.say("Waiting for the first attempt.")
			said = true
		}
		t, err := api.GetTask(ctx, id, followStep)
		if err != nil || finished(t.State) && t.Attempts == 0 {
			return 0, err
		}
	}
}

func numberOf(a *client.Attempt) int {
	if a == nil {
		return 0
	}
	return a.Number
}

func newTaskArtifactsCommand(c *cli) *cobra.Command {
	var dir string
	var number int
	cmd := c.onTask("artifacts", "List what a task left, or download it", func(ctx context.Context, api *client.Client, id string) error {
		artifacts, err := api.ListArtifacts(ctx, id)
		if err != nil {
			return err
		}
		if number > 0 {
			artifacts = ofAttempt(artifacts, number)
		}
		if dir != "" {
			if err := c.download(ctx, api, id, artifacts, dir); err != nil || !c.json() {
				return err
			}
		}
		if c.json() {
			return c.printJSON(client.ArtifactList{Artifacts: artifacts})
		}
		rows := make([][]any, 0, len(artifacts))
		for _, a := range artifacts {
			rows = append(rows, []any{a.Number, a.Name, string(a.Class), size(a.Size), a.ContentType})
		}
		c.printTable([]any{"attempt", "name", "class", "size", "type"}, rows, "No artifacts.")
		return nil
	})
	cmd.Flags().StringVarP(&dir, "output-dir", "d", "", "download into this folder (the last attempt's, unless --attempt names one)")
	cmd.Flags().IntVar(&number, "attempt", 0, "of this attempt only")
	return cmd
}

func ofAttempt(artifacts []client.Artifact, number int) []client.Artifact {
	out := []client.Artifact{}
	for _, a := range artifacts {
		if a.Number == number {
			out = append(out, a)
		}
	}
	return out
}

// download saves the artifacts of the last attempt that left any.
func (c *cli) download(ctx context.Context, api *client.Client, id string, artifacts []client.Artifact, dir string) error {
	if len(artifacts) == 0 {
		c.say("No artifacts.")
		return nil
	}
	artifacts = ofAttempt(artifacts, artifacts[len(artifacts)-1].Number) // they come by number
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return &remedyError{what: "cannot make the folder " + dir, remedy: "check the path"}
	}
	for _, a := range artifacts {
		path, err := c.save(ctx, api, id, a, dir)
		if err != nil {
			return err
		}
		// Not data where stdout is the task's or the list's JSON.
		out := c.stdout
		if c.json() {
			out = c.stderr
		}
		fmt.Fprintf(out, "%s  %s\n", path, size(a.Size))
	}
	return nil
}

// save streams one artifact into dir, whole and verified or not at all.
func (c *cli) save(ctx context.Context, api *client.Client, id string, a client.Artifact, dir string) (path string, err error) {
	if !berth.ValidArtifactName(a.Name) {
		return "", errors.New("the server names an artifact in a way that is no safe file name")
	}
	body, err := api.Artifact(ctx, id, a.Number, a.Name)
	if err != nil {
		return "", err
	}
	defer func() { _ = body.Close() }()
	f, err := os.CreateTemp(dir, ".berth-*")
	if err != nil {
		return "", &remedyError{what: "cannot write into " + dir, remedy: "check its rights"}
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone already when all went well
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(f, sum), body)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", &remedyError{what: a.Name + " came only in part", remedy: "run the command again"}
	}
	if hex.EncodeToString(sum.Sum(nil)) != a.Sha256 {
		return "", &remedyError{what: a.Name + " is not what was stored: its digest differs", remedy: "run the command again; tell the operator if it stays so"}
	}
	path = filepath.Join(dir, a.Name)
	return path, errors.Join(os.Chmod(f.Name(), 0o644), os.Rename(f.Name(), path))
}
