package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/berth-dev/berth/pkg/client"
)

// logins is the file that keeps who is logged in where. It holds tokens, so it
// is readable by its owner alone.
type logins struct {
	// Current is the server of the last login.
	Current string           `json:"current"`
	Logins  map[string]login `json:"logins"`
	// Last is the task that was submitted last, for @last.
	Last string `json:"last,omitempty"`
}

// login is one server's.
type login struct {
	Name         string    `json:"name"`
	AccessToken  string    `json:"access_token,omitempty"`
	ExpiresAt    time.Time `json:"expires_at,omitzero"`
	RefreshToken string    `json:"refresh_token,omitempty"`
	// APIKey in place of the tokens.
	APIKey string `json:"api_key,omitempty"`
}

func loginOf(name string, g client.Grant) login {
	return login{Name: name, AccessToken: g.AccessToken, ExpiresAt: g.ExpiresAt, RefreshToken: g.RefreshToken}
}

// loginFile is below BERTH_CONFIG_DIR, XDG_CONFIG_HOME/berth or
// HOME/.config/berth.
func (c *cli) loginFile() string {
	dir := c.env["BERTH_CONFIG_DIR"]
	switch {
	case dir != "":
	case c.env["XDG_CONFIG_HOME"] != "":
		dir = filepath.Join(c.env["XDG_CONFIG_HOME"], "berth")
	case c.env["HOME"] != "":
		dir = filepath.Join(c.env["HOME"], ".config", "berth")
	default:
		return ""
	}
	return filepath.Join(dir, "login.json")
}

func readLogins(path string) (logins, error) {
	l := logins{Logins: map[string]login{}}
	if path == "" {
		return l, nil
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return l, fmt.Errorf("cannot read the login file: %w", err)
	}
	if err := json.Unmarshal(b, &l); err != nil {
		return l, &remedyError{what: "the login file " + path + " is damaged", remedy: "remove it and run: berth login"}
	}
	if l.Logins == nil {
		l.Logins = map[string]login{}
	}
	return l, nil
}

// changeLogins reads the file, lets change act on it and writes it back, while
// no other berth process does so.
func changeLogins(path string, change func(*logins) error) error {
	if path == "" {
		return &remedyError{what: "there is no place to keep the login", remedy: "set HOME or BERTH_CONFIG_DIR"}
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot make the folder of the login file: %w", err)
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("cannot lock the login file: %w", err)
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("cannot lock the login file: %w", err)
	}
	l, err := readLogins(path)
	if err != nil {
		return err
	}
	if err := change(&l); err != nil {
		return err
	}
	return writeLogins(dir, path, l)
}

// writeLogins replaces the file as a whole: half a file would be a lost login.
func writeLogins(dir, path string, l logins) error {
	b, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".login-*") // mode 0600
	if err != nil {
		return fmt.Errorf("cannot write the login file: %w", err)
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone already when all went well
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("cannot write the login file: %w", err)
	}
	return os.Rename(f.Name(), path)
}

// session gives the token of a stored login and renews it in the file, so that
// several berth processes at once use each refresh token once.
type session struct {
	file string
	url  string
	cli  *cli
}

// renewBefore is how long before its end an access token is renewed.
const renewBefore = 30 * time.Second

// Token returns the stored access token, renewed when its end is near.
func (s *session) Token(ctx context.Context) (string, error) {
	l, err := readLogins(s.file)
	if err != nil {
		return "", err
	}
	if stored, ok := l.Logins[s.url]; ok && stored.ExpiresAt.Sub(s.cli.now()) > renewBefore {
		return stored.AccessToken, nil
	}
	return s.Renew(ctx, "")
}

// Renew asks for a fresh token, unless another process has done so.
func (s *session) Renew(ctx context.Context, rejected string) (token string, err error) {
	err = changeLogins(s.file, func(l *logins) error {
		stored, ok := l.Logins[s.url]
		if !ok {
			return &loginError{url: s.url}
		}
		token = stored.AccessToken
		if token != rejected && stored.ExpiresAt.Sub(s.cli.now()) > renewBefore {
			return nil
		}
		api, err := s.cli.dial(s.url, nil)
		if err != nil {
			return err
		}
		tokens, err := api.Refresh(ctx, stored.RefreshToken)
		if client.HasCode(err, "unauthenticated") {
			return &loginError{url: s.url, over: true}
		}
		if err != nil {
			return err
		}
		grant := client.GrantOf(tokens, s.cli.now())
		l.Logins[s.url] = loginOf(stored.Name, grant)
		token = grant.AccessToken
		return nil
	})
	return token, err
}
