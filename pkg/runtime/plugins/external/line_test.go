package external

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestLines(t *testing.T) {
	half, text := 0.5, "a\tb"
	for line, want := range map[string]any{
		`{"type":"progress","fraction":0.5,"note":"n"}`:                                    &progressLine{"progress", &half, "n"},
		` {"fraction":5e-1,"type":"progress"}` + "\r":                                      &progressLine{"progress", &half, ""},
		`{"type":"log","text":"a\tb"}`:                                                     &logLine{"log", &text},
		`{"type":"artifact","name":"a.png"}`:                                               &artifactLine{"artifact", "a.png", "a.png", "file", "image/png"},
		`{"type":"artifact","name":"a","path":"b/c","class":"video","content_type":"x/y"}`: &artifactLine{"artifact", "a", "b/c", "video", "x/y"},
		`{"type":"result","outcome":"succeeded"}`:                                          &resultLine{"result", "succeeded", "", nil},
		`{"type":"result","outcome":"failed","message":"m","result":{"a":1}}`:              &resultLine{"result", "failed", "m", []byte(`{"a":1}`)},
		`{"type":"result","outcome":"infra_failed","result":null}`:                         &resultLine{"result", "infra_failed", "", nil},

		``:                                   errNoObject,
		`[]`:                                 errNoObject,
		`{} {}`:                              errNoObject,
		`{"type":"log","text":"`:             errNoObject,
		`{"type":"log","type":"l"}`:          errNoObject,
		"{\"type\":\"log\xff\"}":             errNoObject,
		`{}`:                                 errNoType,
		`{"type":1}`:                         errNoType,
		`{"type":"metric"}`:                  errNoType,
		`{"type":"log","text":1}`:            errMembers,
		`{"type":"log","note":"a"}`:          errMembers,
		`{"type":"log"}`:                     errText,
		`{"type":"log","text":null}`:         errText,
		`{"type":"progress"}`:                errFraction,
		`{"type":"progress","fraction":1.5}`: errFraction,
		`{"type":"progress","fraction":-1}`:  errFraction,
		`{"type":"artifact"}`:                errArtifactName,
		`{"type":"artifact","name":"a","class":"log"}`:            errClass,
		`{"type":"result"}`:                                       errOutcome,
		`{"type":"result","outcome":"cancelled"}`:                 errOutcome,
		`{"type":"result","outcome":"succeeded","reason":"x"}`:    errMembers,
		`{"type":"result","outcome":"succeeded","result":[1]}`:    errResult,
		`{"type":"result","outcome":"succeeded","result":"text"}`: errResult,
	} {
		got, err := parseLine([]byte(line))
		if fault, bad := want.(error); bad {
			if !errors.Is(err, fault) {
				t.Errorf("%q gives %v, want %v", line, err, fault)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q gives %+v, %v", line, got, err)
		}
	}
}

func TestReadLine(t *testing.T) {
	long := strings.Repeat("x", maxLine)
	r := bufio.NewReaderSize(strings.NewReader("a\n\n"+long+"\nb"), 16)
	for _, want := range []string{"a", "", long, "b"} {
		if got, err := readLine(r); err != nil || string(got) != want {
			t.Fatalf("%d bytes, %v, want %d", len(got), err, len(want))
		}
	}
	if _, err := readLine(r); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if _, err := readLine(bufio.NewReaderSize(strings.NewReader("x"+long+"\n"), 64<<10)); !errors.Is(err, errTooLong) {
		t.Error(err)
	}
}

// Whatever a process writes: reading ends, takes no more than it is given, and
// what is told of a mistake is one of a few sentences.
func FuzzLines(f *testing.F) {
	f.Add([]byte("{\"type\":\"log\",\"text\":\"a\"}\n{\"type\":\"result\",\"outcome\":\"succeeded\"}"))
	f.Add([]byte("{\"type\":\"progress\",\"fraction\":1e999}\n"))
	f.Add([]byte("\x00\xff\n\n{\"type\":\"artifact\",\"name\":\"a\",\"path\":\"../b\"}"))
	f.Add([]byte("{\"type\":\"result\",\"outcome\":\"failed\",\"result\":{\"a\":[{}]}}\r\n"))
	sentences := []error{errNoObject, errNoType, errMembers, errFraction, errText, errArtifactName, errClass, errOutcome, errResult, errResultSize}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bufio.NewReaderSize(bytes.NewReader(b), 16)
		total := 0
		for {
			line, err := readLine(r)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			total += len(line)
			got, err := parseLine(line)
			switch {
			case err != nil && !slices.Contains(sentences, err):
				t.Fatalf("%q gives %v", line, err)
			case err == nil && reflect.ValueOf(got).IsNil():
				t.Fatalf("%q gives nothing", line)
			}
		}
		if want := len(b) - bytes.Count(b, []byte("\n")); total != want {
			t.Fatalf("%d bytes of %d", total, want)
		}
	})
}
