package httpapi_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/api/apitest"
)

// TestABodyThatIsNoneIsTheClientsFault: chunks that are none, and fewer bytes than
// were promised, are no error of the server, which anybody could fill its log with.
func TestABodyThatIsNoneIsTheClientsFault(t *testing.T) {
	s := apitest.OnSQLite(t)
	host := strings.TrimPrefix(s.URL, "http://")
	for name, body := range map[string]string{
		"no length":      "Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
		"bare line end":  "Transfer-Encoding: chunked\r\n\r\n2;\n{}\r\n0\r\n\r\n",
		"long extension": "Transfer-Encoding: chunked\r\n\r\n2;" + strings.Repeat("a", 20_000) + "\r\n{}\r\n0\r\n\r\n",
		"too few bytes":  "Content-Length: 99\r\n\r\n{}",
	} {
		conn, err := net.DialTimeout("tcp", host, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = fmt.Fprintf(conn, "POST /api/v1/auth/login HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n%s", host, body)
		_ = conn.(*net.TCPConn).CloseWrite()
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else {
			_ = res.Body.Close()
			if res.StatusCode != http.StatusBadRequest {
				t.Errorf("%s: %s", name, res.Status)
			}
		}
		_ = conn.Close()
	}
	if n := s.Logs.FilterMessage("request failed").Len(); n > 0 {
		t.Errorf("%d errors in the log", n)
	}
}
