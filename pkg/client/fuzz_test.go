package client

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// answered is an answer as a server, or whoever stands between, may give it.
func answered(status int, header map[string]string, body []byte) *http.Response {
	r := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(body))}
	for name, value := range header {
		r.Header.Set(name, value)
	}
	return r
}

// FuzzProblem: whatever body an answer of no success has, it becomes a problem with
// the answer's own status, a code and words; a body that is no document of Berth's
// is never quoted.
func FuzzProblem(f *testing.F) {
	for _, s := range []string{
		"", "{}", "null", "[]", `{"code":"invalid","title":"Invalid","status":200,"errors":[{"path":"a","message":"b","remedy":"c"}]}`, `{"code":""}`, `{"code":1}`,
		"<html>502 Bad Gateway</html>", `{"code":"log_gap","next_offset":-1}`, `{"code":"x","errors":[{}]}`, `{"code":"x"} {"code":"y"}`, "{\"code\":\"\xff\"}",
		"Client sent an HTTP request to an HTTPS server.", `{"code":"x","detail":"` + strings.Repeat("long ", 1000) + `"}`, `{"code":"x","title":" "}`,
	} {
		f.Add(uint16(400), []byte(s))
		f.Add(uint16(502), []byte(s))
	}
	f.Fuzz(func(t *testing.T, status uint16, body []byte) {
		r := answered(int(status), map[string]string{"X-Request-Id": "req-1"}, body)
		p := problemOf(r)
		if p.Status != int(status) || p.Code == "" || !HasCode(p, p.Code) {
			t.Fatalf("%q: %+v", body, p)
		}
		if text := p.Error(); !utf8.ValidString(text) || !strings.Contains(text, p.Code) || p.What() == "" {
			t.Fatalf("%q says %q", body, text)
		}
		var ours Problem
		if json.Unmarshal(body, &ours) == nil && ours.Code != "" {
			if p.Code != ours.Code || len(p.Errors) != len(ours.Errors) || p.RequestID != ours.RequestID {
				t.Fatalf("%q became %+v", body, p)
			}
			return
		}
		if p.Code != CodeNoProblemDocument || p.Remedy == "" || len(body) > 16 && strings.Contains(p.Error(), string(body)) {
			t.Fatalf("%q became %+v", body, p)
		}
	})
}

// FuzzLogPiece: a piece of a log goes on exactly where its bytes end, so that who
// follows neither loses bytes, nor sees them twice, nor goes round for ever; every
// other answer is an error.
func FuzzLogPiece(f *testing.F) {
	f.Add(int64(0), "5", "false", []byte("hello"))
	f.Add(int64(7), "12", "true", []byte("hello"))
	for _, next := range []string{"", "4", "6", "-1", "+5", "05", "5 ", "1e1", "9223372036854775808"} {
		f.Add(int64(0), next, "true", []byte("hello"))
	}
	f.Add(int64(9), "9", "TRUE", []byte{})
	f.Fuzz(func(t *testing.T, offset int64, next, ended string, body []byte) {
		if offset < 0 {
			return // nobody asks for it
		}
		piece, err := logPieceOf(answered(200, map[string]string{"Berth-Next-Offset": next, "Berth-Log-Ended": ended}, body), offset)
		said, bad := strconv.ParseInt(next, 10, 64)
		if right := bad == nil && said == offset+int64(len(body)); right != (err == nil) {
			t.Fatalf("from %d on, %d bytes, next %q: %+v, %v", offset, len(body), next, piece, err)
		}
		if err == nil && (piece.Next != said || !bytes.Equal(piece.Bytes, body) || piece.Ended != (ended == "true")) {
			t.Fatalf("%+v", piece)
		}
	})
}
