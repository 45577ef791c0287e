package hostagent

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
)

// Stage of an attempt in the journal.
type Stage string

// The stages, in order. Each is on disk before what it announces is done.
const (
	StageClaimed  Stage = "claimed"  // taken; the device is untouched
	StageStarting Stage = "starting" // a start was asked for
	StageStarted  Stage = "started"  // granted; the work may touch the device
	StageFinished Stage = "finished" // the work is dead; its end is to be reported
	StageDone     Stage = "done"     // reported, handed back, or lost
)

// Record is one line of the journal. It holds ids, fences and codes: no
// payload, result or secret.
type Record struct {
	At      time.Time       `json:"at"`
	Stage   Stage           `json:"stage,omitempty"`
	Attempt berth.AttemptID `json:"attempt,omitempty"`
	Task    berth.TaskID    `json:"task,omitempty"`
	Number  int             `json:"number,omitempty"`
	Device  string          `json:"device,omitempty"` // driver/hardware id
	Fence   berth.Fence     `json:"fence,omitempty"`
	Outcome berth.Outcome   `json:"outcome,omitempty"`
	Reason  string          `json:"reason,omitempty"`
	Epoch   berth.Epoch     `json:"epoch,omitempty"`
}

// Journal is the agent's memory on disk: the highest epoch and fences it has
// seen (so that a restored database can be put above them, I10) and where each
// open attempt stands. Every append is fsynced before it returns. It is safe
// for concurrent use by one process; the Runtime's state lock keeps others out.
type Journal struct {
	mu   sync.Mutex
	path string
	f    *os.File
	size int64
	// compactAt is the size above which it is compacted.
	compactAt int64
	epoch     berth.Epoch
	fences    map[string]acted
	open      map[berth.AttemptID]Record
}

// acted is the highest fence of a device, and the attempt that it was given to;
// "" where the journal is of an older agent.
type acted struct {
	fence   berth.Fence
	attempt berth.AttemptID
}

// compactAbove is the size at which the journal is rewritten with what still
// matters.
const compactAbove = 8 << 20

// OpenJournal reads dir/journal.jsonl, drops a torn last line, compacts it and
// opens it for appending.
func OpenJournal(dir string) (*Journal, error) {
	j := &Journal{
		path:   filepath.Join(dir, "journal.jsonl"),
		fences: map[string]acted{},
		open:   map[berth.AttemptID]Record{},
	}
	records, err := ReadJournal(dir)
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		j.apply(r)
	}
	if err := j.compact(); err != nil {
		// A full disk keeps nobody from going on with the journal that there is.
		if j.reopen() != nil {
			return nil, err
		}
	}
	return j, nil
}

// reopen goes on with the file that there is, cutting off a torn last line.
func (j *Journal) reopen() error {
	f, err := os.OpenFile(j.path, os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	b, err := io.ReadAll(f)
	end := int64(bytes.LastIndexByte(b, '\n') + 1)
	if err == nil {
		err = f.Truncate(end)
	}
	if err == nil {
		_, err = f.Seek(end, io.SeekStart)
	}
	if err != nil {
		_ = f.Close()
		return fmt.Errorf("journal: %w", err)
	}
	j.f, j.size, j.compactAt = f, end, max(compactAbove, end+compactAbove/8)
	return nil
}

// ReadJournal returns the records of dir's journal, oldest first. A torn last
// line, which a crash may leave, is left out; any other broken line is an
// error. No journal is no record.
func ReadJournal(dir string) ([]Record, error) {
	b, err := os.ReadFile(filepath.Join(dir, "journal.jsonl"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	var out []Record
	sc := bufio.NewScanner(bytes.NewReader(b))
	sc.Buffer(nil, 1<<20)
	read := 0
	for sc.Scan() {
		line := sc.Bytes()
		read += len(line) + 1
		var r Record
		if err := json.Unmarshal(line, &r); err != nil {
			if read > len(b) { // no newline after it: torn
				break
			}
			return nil, fmt.Errorf("journal: line %d is broken: move %s away and start again", len(out)+1, filepath.Join(dir, "journal.jsonl"))
		}
		out = append(out, r)
	}
	return out, sc.Err()
}

// apply takes a record into the memory; j.mu is held or nobody else has j.
func (j *Journal) apply(r Record) {
	j.epoch = max(j.epoch, r.Epoch)
	if top := j.fences[r.Device]; r.Device != "" && r.Fence > top.fence {
		j.fences[r.Device] = acted{r.Fence, r.Attempt}
	}
	switch {
	case r.Attempt == "" || r.Stage == "": // an epoch, or a device's highest fence
	case r.Stage == StageDone:
		delete(j.open, r.Attempt)
	default:
		j.open[r.Attempt] = r
	}
}

// Append writes records and syncs them to disk. After an error nothing may be
// done that the records announce.
func (j *Journal) Append(records ...Record) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	var buf bytes.Buffer
	for i := range records {
		records[i].At = time.Now().UTC()
		b, err := json.Marshal(records[i])
		if err != nil {
			return fmt.Errorf("journal: %w", err)
		}
		buf.Write(b)
		buf.WriteByte('\n')
	}
	n, err := j.f.Write(buf.Bytes())
	if err == nil {
		err = j.f.Sync()
	}
	if err != nil {
		// A torn line in the middle would make the journal unreadable.
		if terr := j.f.Truncate(j.size); terr == nil {
			_, _ = j.f.Seek(j.size, io.SeekStart)
		}
		return fmt.Errorf("journal: %w", err)
	}
	j.size += int64(n)
	for _, r := range records {
		j.apply(r)
	}
	if j.size > j.compactAt && j.compact() != nil {
		j.compactAt = j.size + compactAbove/8 // what was appended is on disk
	}
	return nil
}

// compact rewrites the journal with what still matters, atomically.
func (j *Journal) compact() error {
	tmp, err := os.CreateTemp(filepath.Dir(j.path), "journal-*")
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	enc := json.NewEncoder(tmp)
	now := time.Now().UTC()
	fault := enc.Encode(Record{At: now, Epoch: j.epoch})
	for _, d := range slices.Sorted(maps.Keys(j.fences)) {
		fault = errors.Join(fault, enc.Encode(Record{At: now, Device: d, Fence: j.fences[d].fence, Attempt: j.fences[d].attempt}))
	}
	for _, id := range slices.Sorted(maps.Keys(j.open)) {
		fault = errors.Join(fault, enc.Encode(j.open[id]))
	}
	info, err := tmp.Stat()
	// Only a whole file replaces the journal: one cut by a full disk would forget
	// fences and epoch.
	if fault = errors.Join(fault, err, tmp.Sync()); fault == nil {
		fault = os.Rename(tmp.Name(), j.path)
	}
	if fault != nil {
		_ = tmp.Close()
		return fmt.Errorf("journal: %w", fault)
	}
	if j.f != nil {
		_ = j.f.Close()
	}
	j.f, j.size, j.compactAt = tmp, info.Size(), max(compactAbove, 2*info.Size())
	return syncDir(filepath.Dir(j.path))
}

// Epoch is the highest epoch seen.
func (j *Journal) Epoch() berth.Epoch {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.epoch
}

// Fence is the highest fence seen for a device (driver/hardware id).
func (j *Journal) Fence(device string) berth.Fence {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.fences[device].fence
}

// Outdated reports whether the lease of an attempt is older than one that was
// acted under: its fence is lower, or another attempt had it. Both come from a
// database that was restored.
func (j *Journal) Outdated(device string, fence berth.Fence, attempt berth.AttemptID) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	top := j.fences[device]
	return fence < top.fence || (fence == top.fence && top.attempt != "" && top.attempt != attempt)
}

// Open lists the attempts that are not done, in no order.
func (j *Journal) Open() []Record {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Collect(maps.Values(j.open))
}

// Close closes the file.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.f.Close()
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return d.Sync()
}

// writeFile replaces path atomically and durably with mode 0600.
func writeFile(path string, b []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	_, err = tmp.Write(b)
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err != nil {
		return err
	}
	return errors.Join(os.Rename(tmp.Name(), path), syncDir(filepath.Dir(path)))
}
