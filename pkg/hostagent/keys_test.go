package hostagent

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/runtime/builtin"
	"github.com/berth-dev/berth/pkg/store"
)

// The environment of an agent that kills itself at a step of a change of its key.
const (
	killedAt     = "BERTH_TEST_KILLED_AT"
	killedServer = "BERTH_TEST_SERVER"
	killedDir    = "BERTH_TEST_DIR"
)

// runUntilKilled is an agent in a process of its own whose key is too old.
func runUntilKilled() error {
	at, err := strconv.Atoi(os.Getenv(killedAt))
	if err != nil {
		return err
	}
	rt, err := builtin.New(context.Background(), builtin.Config{StateDir: os.Getenv(killedDir), ProcessSlots: 1})
	if err != nil {
		return err
	}
	a, err := New(Config{
		Server: os.Getenv(killedServer), StateDir: os.Getenv(killedDir), Name: "host-1", Runtime: rt.Runtime, KeyMaxAge: time.Nanosecond,
		Logger: zap.Must(zap.NewDevelopment()),
		keyStep: func(n int) {
			if n == at {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		},
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	return errors.Join(a.Run(ctx), errors.New("it ended"))
}

// serverKeys are the host's keys as the server has them.
func (w *world) serverKeys(host berth.HostID) store.HostKeys {
	w.t.Helper()
	keys, err := w.store.HostKeys(w.t.Context(), host)
	must(w.t, err)
	return keys
}

func publicOf(key ed25519.PrivateKey) []byte { return key.Public().(ed25519.PublicKey) }

// refuses asks for a token under a key and reports whether the server refused.
func (w *world) refuses(key ed25519.PrivateKey, id hostIdentity) bool {
	w.t.Helper()
	assertion, err := identity.NewAssertion(key, id.HostID, id.Audience, time.Now())
	must(w.t, err)
	body, err := json.Marshal(protocol.TokenRequest{GrantType: protocol.GrantJWTBearer, Assertion: assertion.Reveal()})
	must(w.t, err)
	res, err := http.Post(w.server.URL+protocol.PathToken, "application/json", bytes.NewReader(body)) //nolint:noctx // a test
	must(w.t, err)
	_, _ = io.Copy(io.Discard, res.Body)
	must(w.t, res.Body.Close())
	return res.StatusCode == http.StatusUnauthorized
}

// Whatever step of a change of its key an agent is killed at, the next one gets in,
// finishes the change, and the old key is dead.
func TestAnAgentKilledAtAnyStepOfAChangeOfItsKeyGetsIn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	must(t, w.agent(1)())
	id := w.last.id
	for at := 1; at <= 4; at++ {
		keys, err := openKeyring(w.dir)
		must(t, err)
		old := keys.current
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), killedAt+"="+strconv.Itoa(at), killedServer+"="+w.server.URL, killedDir+"="+w.dir)
		said, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("step %d: it was not killed: %v\n%s", at, err, said)
		}
		if st, err := os.Stat(filepath.Join(w.dir, map[bool]string{true: nextKeyFile, false: keyFile}[at < 4])); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("step %d: the new key's file: %v, %v", at, st, err)
		}
		offered := w.serverKeys(id.HostID)
		if inForce := !bytes.Equal(offered.Current, publicOf(old)); inForce != (at >= 3) || (offered.Next != nil) != (at == 2) {
			t.Errorf("step %d: the server has %x", at, offered)
		}
		stop := w.agent(1) // it syncs, or the test ends here
		await(t, "the change is finished", func() bool {
			_, err := os.Stat(filepath.Join(w.dir, nextKeyFile))
			return errors.Is(err, os.ErrNotExist) && !bytes.Equal(w.serverKeys(id.HostID).Current, publicOf(old))
		})
		must(t, stop())
		keys, err = openKeyring(w.dir)
		must(t, err)
		if has := w.serverKeys(id.HostID); !bytes.Equal(has.Current, publicOf(keys.current)) || has.Next != nil {
			t.Errorf("step %d: the server has %x, the host %x", at, has, publicOf(keys.current))
		}
		if !w.refuses(old, id) || w.refuses(keys.current, id) {
			t.Errorf("step %d: the old key counts, or the new one does not", at)
		}
	}
}

// What runs is renewed across a change that an administrator asked for, also when
// each answer is lost once.
func TestWorkGoesOnAcrossAChangeOfTheKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, roomy)
	stop := w.agent(1)
	id, epoch := w.last.id, w.last.api.heldEpoch()
	old := id.keys.keys()[0]
	lost := map[string]bool{}
	w.proxy.answered(func(r *http.Response) error {
		if path := r.Request.URL.Path; (path == protocol.PathKeys || path == protocol.PathToken) && !lost[path] {
			lost[path] = true
			return errLost
		}
		return nil
	})
	task := w.submit("sleep 4")
	w.awaitState(task, berth.StateRunning)
	_, err := w.store.RequestKeyRotation(t.Context(), berth.Actor{Principal: berth.Principal{Kind: berth.ActorUser, ID: "op"}}, id.HostID)
	must(t, err)
	await(t, "the key is another", func() bool { return !bytes.Equal(w.serverKeys(id.HostID).Current, publicOf(old)) })
	w.awaitState(task, berth.StateSucceeded)
	if at := w.attempts(task); len(at) != 1 {
		t.Errorf("attempts %+v", at)
	}
	await(t, "its file is in place", func() bool {
		keys, err := openKeyring(w.dir)
		return err == nil && bytes.Equal(publicOf(keys.current), w.serverKeys(id.HostID).Current) && keys.next == nil
	})
	if !w.refuses(old, id) {
		t.Error("the old key counts still")
	}
	if h := w.host(); h.Epoch != epoch || !h.KeyRotationRequestedAt.IsZero() || h.KeyChangedAt.IsZero() {
		t.Errorf("host %+v, the epoch was %d", h, epoch)
	}
	if w.said("the host's key was changed") != 1 {
		t.Error("the change is not told")
	}
	must(t, stop())
	w.agent(1) // the new key is on the disk
}

// A host that was revoked kills what runs when it hears of it, long before its
// fence, and its agent ends with the reason.
func TestARevokedHostKillsItsWorkAtOnce(t *testing.T) {
	t.Parallel()
	for name, hear := range map[string]func(w *world){
		"by a heartbeat": func(*world) {},
		"by its token":   func(w *world) { w.last.api.dropToken() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, roomy, func(s *berth.Timings) { s.LeaseTTL, s.RenewEvery = 10*time.Minute, 5*time.Second })
			stop, ended := w.start(1)
			marker := filepath.Join(t.TempDir(), "pid")
			task := w.submit("echo $$ > " + marker + "; exec sleep 3600")
			w.awaitState(task, berth.StateRunning)
			var pid int
			await(t, "the work runs", func() bool {
				b, err := os.ReadFile(marker)
				if err != nil {
					return false
				}
				pid, err = strconv.Atoi(strings.TrimSpace(string(b)))
				return err == nil
			})
			_, _, err := w.store.RevokeHost(t.Context(), berth.Actor{Principal: berth.Principal{Kind: berth.ActorUser, ID: "op"}}, w.last.id.HostID)
			must(t, err)
			hear(w)
			select {
			case <-ended:
			case <-time.After(40 * time.Second): // far below the lease of 10 min
				t.Fatal("the agent goes on")
			}
			if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
				t.Errorf("the work is alive: %v", err)
			}
			var setup *berth.SetupError
			if err := stop(); !errors.As(err, &setup) || !strings.Contains(setup.What, "it was revoked") {
				t.Errorf("it ended with %v", err)
			}
			if w.said("the server takes nothing of this host any more") != 1 {
				t.Error("the log does not say why")
			}
		})
	}
}

func TestABrokenKeyIsNotOverwritten(t *testing.T) {
	dir := t.TempDir()
	k, err := openKeyring(dir)
	must(t, err)
	path := filepath.Join(dir, nextKeyFile)
	must(t, os.WriteFile(path, []byte("half a k"), 0o600))
	if _, err := openKeyring(dir); err == nil || !strings.Contains(err.Error(), nextKeyFile) {
		t.Errorf("err = %v", err)
	}
	must(t, os.Remove(path))
	_, next, err := k.follow()
	must(t, err)
	_, again, err := k.follow()
	must(t, err)
	if !next.Equal(again) || len(k.keys()) != 2 {
		t.Error("a change that was begun begins anew")
	}
	// The server took it, and the disk does not.
	must(t, os.Rename(path, path+".away"))
	if changed, err := k.used(next); !changed || err == nil {
		t.Errorf("used: %v, %v", changed, err)
	}
	if keys := k.keys(); len(keys) != 1 || !keys[0].Equal(next) || !k.due(time.Now(), 0) {
		t.Error("the new key is not in force, or its file is forgotten")
	}
	must(t, os.Rename(path+".away", path))
	_, newer, err := k.follow()
	must(t, err)
	if stored, err := loadKey(filepath.Join(dir, keyFile)); err != nil || !stored.Equal(next) || newer.Equal(next) {
		t.Errorf("the new key was not put in its place: %v", err)
	}
}
