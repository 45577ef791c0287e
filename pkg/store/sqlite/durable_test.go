package sqlite_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mattn/go-sqlite3"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/schema"
	"github.com/berth-dev/berth/pkg/store"
	"github.com/berth-dev/berth/pkg/store/sqlite"
)

func TestConnectionsAreDurableAndStrict(t *testing.T) {
	s := open(t, migrated(t), store.Options{})
	for pragma, want := range map[string][2]string{
		"journal_mode": {"wal", "wal"},
		"synchronous":  {"2", "2"}, // FULL
		"foreign_keys": {"1", "1"},
		"query_only":   {"0", "1"},
	} {
		writer, reader, err := s.Pragma(bg(), pragma)
		must(t, err)
		if got := [2]string{writer, reader}; got != want {
			t.Errorf("%s of writer and reader is %v, should be %v", pragma, got, want)
		}
	}
}

func TestForeignKeysAreOn(t *testing.T) {
	path := migrated(t)
	s := open(t, path, store.Options{})
	err := s.AddRefreshToken(bg(), store.RefreshToken{Family: "f", User: "nobody"})
	if !errors.Is(err, berth.ErrNotFound) {
		t.Errorf("a token of an unknown user: %v", err)
	}
	if n := texts(t, raw(t, path), "SELECT count(*) FROM refresh_tokens"); n[0] != "0" {
		t.Errorf("%s tokens stored", n[0])
	}
}

func TestFileIsPrivate(t *testing.T) {
	path := t.TempDir() + "/new file?#%.db"
	s := open(t, path, store.Options{})
	if version, dirty, err := s.SchemaVersion(bg()); version != 0 || dirty || err != nil {
		t.Errorf("schema of an empty file: %d, %v, %v", version, dirty, err)
	}
	info, err := os.Stat(path)
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
}

func TestSchemaVersionIsTheMigrationsOwn(t *testing.T) {
	path := migrated(t)
	s := open(t, path, store.Options{})
	for _, dirty := range []bool{false, true} {
		if dirty {
			_, err := raw(t, path).Exec("UPDATE schema_migrations SET dirty = 1")
			must(t, err)
		}
		version, isDirty, err := s.SchemaVersion(bg())
		if version != schema.Latest() || isDirty != dirty || err != nil {
			t.Errorf("version %d, dirty %v, %v", version, isDirty, err)
		}
	}
}

func TestFullDiskIsUnavailableAndLosesNothing(t *testing.T) {
	path := migrated(t)
	w := newSite(t, path, 1, store.Options{})
	must(t, w.s.LimitPages(bg(), 40))
	params := func() store.SubmitParams {
		n := w.task(func(n *berth.NewTask) {
			n.Payload = redact.NewBytes([]byte(`"` + strings.Repeat("x", 9000) + `"`))
		})
		return store.SubmitParams{Actor: operator, Tasks: []berth.NewTask{n}, IdempotencyKey: string(n.ID)}
	}
	var stored []berth.TaskID
	var refused store.SubmitParams
	for {
		p := params()
		_, err := w.s.SubmitTasks(bg(), p)
		if err != nil {
			if !errors.Is(err, berth.ErrUnavailable) || !strings.Contains(err.Error(), "disk full") {
				t.Fatalf("full: %v", err)
			}
			refused = p
			break
		}
		if stored = append(stored, p.Tasks[0].ID); len(stored) > 1000 {
			t.Fatal("the disk is never full")
		}
	}
	if len(stored) == 0 {
		t.Fatal("nothing was stored before the disk was full")
	}
	// What was acknowledged is there; what was refused is not; reads go on.
	for _, id := range stored {
		_, err := w.s.GetTask(bg(), everything, id)
		must(t, err)
	}
	if _, err := w.s.GetTask(bg(), everything, refused.Tasks[0].ID); !errors.Is(err, berth.ErrNotFound) {
		t.Errorf("the refused task: %v", err)
	}
	must(t, w.s.LimitPages(bg(), -1))
	for range 2 {
		res, err := w.s.SubmitTasks(bg(), refused)
		must(t, err)
		if len(res.Tasks) != 1 || res.Tasks[0].State != berth.StateQueued {
			t.Errorf("repeated submit answered %+v", res.Tasks)
		}
	}
	intact(t, path)
}

// intact asks SQLite itself, and that every unfinished task is in one place.
func intact(t *testing.T, path string) {
	t.Helper()
	db := raw(t, path)
	if got := texts(t, db, "PRAGMA integrity_check"); got[0] != "ok" {
		t.Errorf("integrity: %v", got)
	}
	if got := texts(t, db, "SELECT \"table\" FROM pragma_foreign_key_check"); len(got) > 0 {
		t.Errorf("rows without parents in %v", got)
	}
	lost := texts(t, db, `SELECT id FROM tasks t WHERE final_state IS NULL AND 1 <>
		(SELECT count(*) FROM queue WHERE task_id = t.id) + (SELECT count(*) FROM delayed WHERE task_id = t.id)
		+ (SELECT count(*) FROM attempts WHERE task_id = t.id AND ended_at IS NULL)`)
	if len(lost) > 0 {
		t.Errorf("tasks that are not in exactly one place: %v", lost)
	}
}

const submitterEnv = "BERTH_TEST_SQLITE_SUBMITTER"

// submitForEver is the child process: it submits without an end and prints each
// id once its submit was acknowledged.
func submitForEver(path string) {
	s, err := sqlite.Open(bg(), path, store.Options{})
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	pool, err := s.GetPool(bg(), berth.DefaultPool)
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	var wg sync.WaitGroup
	var out sync.Mutex
	for i := range 4 {
		wg.Go(func() {
			for n := 0; ; n++ {
				ids := []string{fmt.Sprintf("%08x-0000-7000-8000-%012x", i, 2*n), fmt.Sprintf("%08x-0000-7000-8000-%012x", i, 2*n+1)}
				_, err := s.SubmitTasks(bg(), store.SubmitParams{
					Actor: operator, IdempotencyKey: ids[0], Tasks: []berth.NewTask{newTask(ids[0], pool.ID), newTask(ids[1], pool.ID)},
				})
				if err != nil {
					fmt.Println("error:", err)
					return
				}
				out.Lock()
				fmt.Println(ids[0])
				fmt.Println(ids[1])
				out.Unlock()
			}
		})
	}
	wg.Wait()
}

func TestKilledInTheMiddleOfSubmitsKeepsWhatWasAcknowledged(t *testing.T) {
	path := migrated(t)
	total := 0
	for round := range 3 {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), submitterEnv+"="+path)
		if round > 0 {
			// Ids start anew in each process: let the file be fresh.
			path = migrated(t)
			child.Env = append(os.Environ(), submitterEnv+"="+path)
		}
		child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		pipe, err := child.StdoutPipe()
		must(t, err)
		must(t, child.Start())
		var acknowledged []string
		lines := bufio.NewScanner(pipe)
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), "error") {
				t.Error(lines.Text())
				break
			}
			// Once killed, what the pipe still holds was acknowledged as well.
			if acknowledged = append(acknowledged, lines.Text()); len(acknowledged) == 100+round*37 {
				must(t, child.Process.Kill())
			}
		}
		_ = child.Process.Kill()
		if err := child.Wait(); err == nil {
			t.Error("the child ended by itself")
		}
		s := open(t, path, store.Options{})
		for _, id := range acknowledged {
			if !berth.ValidID(id) {
				continue // a line cut off by the kill
			}
			total++
			if task, err := s.GetTask(bg(), everything, berth.TaskID(id)); err != nil || task.State != berth.StateQueued {
				t.Errorf("acknowledged task %s: state %q, %v", id, task.State, err)
			}
		}
		must(t, s.Close())
		intact(t, path)
	}
	if total < 300 {
		t.Errorf("only %d acknowledged submits were looked at", total)
	}
}

func TestNoDriverErrorLeaves(t *testing.T) {
	path := migrated(t)
	w := newSite(t, path, 1, store.Options{})
	const secret = "secret-value"
	user := berth.User{ID: berth.UserID(w.id()), Name: "u"}
	must(t, w.s.CreateUser(bg(), operator, user, redact.NewString(secret)))
	second := w.s.CreateUser(bg(), operator, berth.User{ID: berth.UserID(w.id()), Name: "u"}, redact.NewString(secret))
	if !errors.Is(second, berth.ErrExists) {
		t.Errorf("a taken name: %v", second)
	}
	_, err := w.s.CreatePool(bg(), store.CreatePoolParams{Actor: operator, Pool: berth.Pool{ID: "p", Name: "p", AgeingStep: -time.Second}})
	if err == nil {
		t.Error("a negative ageing step was stored")
	}
	errs := []error{second, err}
	for _, err := range errs {
		var se sqlite3.Error
		var no sqlite3.ErrNo
		if errors.As(err, &se) || errors.As(err, &no) {
			t.Errorf("the driver's error is in reach: %v", err)
		}
		if strings.Contains(err.Error(), secret) {
			t.Errorf("a value is in the text: %v", err)
		}
	}
}
