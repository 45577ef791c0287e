package external

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"github.com/berth-dev/berth/pkg/runtime"
	"github.com/berth-dev/berth/pkg/strictjson"
)

const (
	// maxLine bounds a line of standard output.
	maxLine = 1 << 20
	// maxResult bounds a result: what the control plane takes.
	maxResult = 256 << 10
)

// What may be wrong with a line. None of them holds anything of the line.
var (
	errTooLong      = errors.New("is longer than 1 MiB")
	errNoObject     = errors.New("is not one JSON object")
	errNoType       = errors.New(`has a "type" that is none of progress, log, artifact and result`)
	errMembers      = errors.New("has a member that its type does not have, or one of a wrong JSON type")
	errFraction     = errors.New(`needs a "fraction" from 0 to 1`)
	errText         = errors.New(`needs a "text"`)
	errArtifactName = errors.New(`needs a "name"`)
	errClass        = errors.New(`has a "class" that is none of screenshot, ui_tree, report, video and file`)
	errOutcome      = errors.New(`needs an "outcome" that is succeeded, failed or infra_failed`)
	errResult       = errors.New(`has a "result" that is no JSON object`)
	errResultSize   = errors.New(`has a "result" of more than 256 KiB; larger things are artifacts`)
	errAfterResult  = errors.New("comes after the result, which is the last")
)

// One of these is what a line says.
type (
	progressLine struct {
		Type     string   `json:"type"`
		Fraction *float64 `json:"fraction"`
		Note     string   `json:"note"`
	}
	logLine struct {
		Type string  `json:"type"`
		Text *string `json:"text"`
	}
	artifactLine struct {
		Type        string `json:"type"`
		Name        string `json:"name"`
		Path        string `json:"path"`
		Class       string `json:"class"`
		ContentType string `json:"content_type"`
	}
	resultLine struct {
		Type    string          `json:"type"`
		Outcome string          `json:"outcome"`
		Message string          `json:"message"`
		Result  json.RawMessage `json:"result"`
	}
)

// parseLine returns a *progressLine, *logLine, *artifactLine or *resultLine.
func parseLine(b []byte) (any, error) {
	b = bytes.TrimSpace(b)
	var kind struct {
		Type *string `json:"type"`
	}
	if !bytes.HasPrefix(b, []byte("{")) || strictjson.Check(b, nil) != nil {
		return nil, errNoObject
	}
	if json.Unmarshal(b, &kind) != nil || kind.Type == nil {
		return nil, errNoType
	}
	switch *kind.Type {
	case "progress":
		l := &progressLine{}
		switch err := into(b, l); {
		case err != nil:
			return nil, err
		case l.Fraction == nil || *l.Fraction < 0 || *l.Fraction > 1:
			return nil, errFraction
		}
		return l, nil
	case "log":
		l := &logLine{}
		switch err := into(b, l); {
		case err != nil:
			return nil, err
		case l.Text == nil:
			return nil, errText
		}
		return l, nil
	case "artifact":
		l := &artifactLine{}
		switch err := into(b, l); {
		case err != nil:
			return nil, err
		case l.Name == "":
			return nil, errArtifactName
		}
		return l, l.complete()
	case "result":
		l := &resultLine{}
		if err := into(b, l); err != nil {
			return nil, err
		}
		return l, l.check()
	}
	return nil, errNoType
}

func into(b []byte, line any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if dec.Decode(line) != nil {
		return errMembers
	}
	return nil
}

// complete fills in what an artifact's line may leave out.
func (l *artifactLine) complete() error {
	if l.Path == "" {
		l.Path = l.Name
	}
	if l.ContentType == "" {
		l.ContentType = contentType(l.Path)
	}
	switch runtime.ArtifactClass(l.Class) {
	case runtime.ClassScreenshot, runtime.ClassUITree, runtime.ClassReport, runtime.ClassVideo, runtime.ClassFile:
	case "":
		l.Class = string(runtime.ClassFile)
	default:
		return errClass
	}
	return nil
}

func (l *resultLine) check() error {
	switch runtime.Outcome(l.Outcome) {
	case runtime.OutcomeSucceeded, runtime.OutcomeFailed, runtime.OutcomeInfraFailed:
	default:
		return errOutcome
	}
	if l.Result = present(l.Result); len(l.Result) > 0 && l.Result[0] != '{' {
		return errResult
	}
	if len(l.Result) > maxResult {
		return errResultSize
	}
	return nil
}

// readLine returns the next line without its end, of which the last of all needs
// none. io.EOF when there is none; errTooLong, after which reading makes no sense.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > maxLine+1 {
			return nil, errTooLong
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return bytes.TrimSuffix(line, []byte("\n")), nil
		case errors.Is(err, bufio.ErrBufferFull):
		case len(line) > 0:
			return line, nil // the error comes again
		default:
			return nil, io.EOF // whatever broke: there is no more
		}
	}
}
