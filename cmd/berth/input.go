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
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
)

func newInputCommand(c *cli) *cobra.Command {
	cmd := group("input", "Upload the files that tasks bring", newInputPutCommand(c), newInputListCommand(c), newInputGetCommand(c))
	cmd.Long = "Upload the files that tasks bring. Each is kept once, by the SHA-256 of its bytes, for a week after its last use.\n" +
		"`berth task submit --input name=FILE` uploads by itself."
	return cmd
}

func newInputPutCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "put FILE...", Short: "Upload files, or what is missing of them, and print their digests", Args: atLeast(1, "files"),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			for _, path := range args {
				in, err := digestFile(path)
				if err != nil {
					return err
				}
				u, err := c.upload(cmd.Context(), api, in)
				if err != nil {
					return err
				}
				if c.json() {
					err = c.printJSON(u)
				} else {
					fmt.Fprintf(c.stdout, "%s  %s\n", u.Digest, path)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// inputFile is a file to upload.
type inputFile struct {
	name   string // that the work sees
	path   string // "": it was uploaded before
	digest string
	size   int64
}

// inputOf reads an argument of --input: NAME=FILE, FILE, or NAME=sha256:DIGEST
// for what was uploaded before.
func inputOf(arg string) (inputFile, error) {
	name, path, ok := strings.Cut(arg, "=")
	if !ok {
		name, path = filepath.Base(arg), arg
	}
	if !berth.ValidArtifactName(name) {
		return inputFile{}, &usageError{
			what:   fmt.Sprintf("--input: %q cannot name a file", clip(printable(name), 40)),
			remedy: "write NAME=FILE with a name of letters, digits and . _ -, without a leading dot or hyphen",
		}
	}
	if digest, ok := strings.CutPrefix(path, "sha256:"); ok {
		if !berth.ValidDigest(digest) {
			return inputFile{}, &usageError{what: "--input: it is no SHA-256", remedy: "write NAME=sha256: and 64 lower-case hex digits, as berth input put prints them"}
		}
		return inputFile{name: name, digest: digest}, nil
	}
	in, err := digestFile(path)
	in.name = name
	return in, err
}

func digestFile(path string) (inputFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return inputFile{}, &remedyError{what: "cannot read " + path, remedy: "check the path"}
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return inputFile{}, &remedyError{what: path + " is no file", remedy: "name a file; pack a folder into an archive"}
	}
	in := inputFile{path: path}
	if in.digest, in.size, err = client.DigestOf(f); err != nil {
		return in, &remedyError{what: "cannot read " + path, remedy: "check the disk"}
	}
	return in, nil
}

// upload sends what the server has not, and shows a person how far it is.
func (c *cli) upload(ctx context.Context, api *client.Client, in inputFile) (client.InputUpload, error) {
	f, err := os.Open(in.path)
	if err != nil {
		return client.InputUpload{}, &remedyError{what: "cannot read " + in.path, remedy: "check the path"}
	}
	defer func() { _ = f.Close() }()
	sent := false
	watched := terminal(c.stderr)
	u, err := api.UploadInput(ctx, f, in.digest, in.size, func(u client.InputUpload) {
		sent = true
		if watched {
			fmt.Fprintf(c.stderr, "\r%s  %d %%  %s of %s\033[K", printable(in.path), 100*u.Received/max(u.Size, 1), size(u.Received), size(u.Size))
		}
	})
	if watched && sent {
		c.say("")
	}
	switch {
	case err != nil:
		return u, err
	case !sent:
		c.say("%s is there already (%s).", printable(in.path), size(in.size))
	case !watched:
		c.say("%s uploaded (%s).", printable(in.path), size(in.size))
	}
	return u, nil
}

func newInputListCommand(c *cli) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List inputs", Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			all, next, err := pages(limit, func(size int, token string) ([]client.Input, string, error) {
				l, err := api.ListInputs(cmd.Context(), client.ListInputsParams{PageSize: size, PageToken: token})
				return l.Inputs, l.NextPageToken, err
			})
			if err != nil {
				return err
			}
			if c.json() {
				return c.printJSON(client.InputList{Inputs: all, NextPageToken: next})
			}
			rows := make([][]any, 0, len(all))
			for _, i := range all {
				rows = append(rows, []any{i.Digest, size(i.Size), c.since(i.CreatedAt), c.ago(i.LastUsedAt)})
			}
			c.printTable([]any{"digest", "size", "age", "used"}, rows, "No inputs. `berth input put FILE` uploads one.")
			c.more(next, len(all))
			return nil
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 200, "at most this many; 0 for all")
	return cmd
}

func newInputGetCommand(c *cli) *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use: "get DIGEST", Short: "Show an input, or download it", Args: exactly(1, "the digest of an input"),
		RunE: func(cmd *cobra.Command, args []string) error {
			digest := strings.TrimPrefix(args[0], "sha256:")
			if !berth.ValidDigest(digest) {
				return &usageError{command: cmd.CommandPath(), what: fmt.Sprintf("%q is no digest", clip(printable(digest), 40)), remedy: "berth input list shows them"}
			}
			api, err := c.client()
			if err != nil {
				return err
			}
			i, err := api.GetInput(cmd.Context(), digest)
			if err != nil {
				return unnamed(err, "input of that digest, or it is not yours", "berth input list shows what is there; berth input put FILE uploads")
			}
			if to != "" {
				if err := c.saveInput(cmd.Context(), api, i, to); err != nil || to == "-" {
					return err
				}
			}
			if c.json() {
				return c.printJSON(i)
			}
			c.printFields([][2]string{{"Digest", i.Digest}, {"Size", size(i.Size)}, {"Uploaded", stamp(i.CreatedAt)}, {"Used", stamp(i.LastUsedAt)}, {"Saved", to}})
			return nil
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "download it into this file; - for standard output")
	return cmd
}

// saveInput streams an input into a file, whole and verified or not at all.
func (c *cli) saveInput(ctx context.Context, api *client.Client, i client.Input, to string) error {
	body, err := api.InputContent(ctx, i.Digest)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	sum := sha256.New()
	if to == "-" {
		if _, err := io.Copy(io.MultiWriter(c.stdout, sum), body); err != nil {
			return &remedyError{what: "the input came only in part", remedy: "run the command again"}
		}
		return c.verified(i, sum.Sum(nil))
	}
	f, err := os.CreateTemp(filepath.Dir(to), ".berth-*")
	if err != nil {
		return &remedyError{what: "cannot write into " + filepath.Dir(to), remedy: "check the path and its rights"}
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone already when all went well
	_, err = io.Copy(io.MultiWriter(f, sum), body)
	if err = errors.Join(err, f.Close()); err != nil {
		return &remedyError{what: "the input came only in part", remedy: "run the command again"}
	}
	if err := c.verified(i, sum.Sum(nil)); err != nil {
		return err
	}
	return errors.Join(os.Chmod(f.Name(), 0o644), os.Rename(f.Name(), to))
}

func (c *cli) verified(i client.Input, sum []byte) error {
	if hex.EncodeToString(sum) == i.Digest {
		return nil
	}
	return &remedyError{what: "what came is not the input: its digest differs", remedy: "run the command again; tell the operator if it stays so"}
}
