package procs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stat is what a sweep needs of /proc/<pid>/stat.
type stat struct {
	pid     int
	dead    bool // zombie or being removed
	group   int
	session int
	start   uint64
}

var errBadStat = errors.New("unexpected form of /proc/<pid>/stat")

func readStat(pid int) (stat, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, err
	}
	// The name in parentheses may hold anything, ')' and spaces included.
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return stat{}, errBadStat
	}
	f := bytes.Fields(b[i+1:])
	if len(f) < 20 {
		return stat{}, errBadStat
	}
	st := stat{pid: pid, dead: f[0][0] == 'Z' || f[0][0] == 'X'}
	if st.group, err = strconv.Atoi(string(f[2])); err != nil {
		return stat{}, errBadStat
	}
	if st.session, err = strconv.Atoi(string(f[3])); err != nil {
		return stat{}, errBadStat
	}
	if st.start, err = strconv.ParseUint(string(f[19]), 10, 64); err != nil {
		return stat{}, errBadStat
	}
	return st, nil
}

// marked reports whether the process's environment carries the mark.
func marked(pid int, mark string) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	want := []byte(EnvMark + "=" + mark)
	for _, kv := range bytes.Split(b, []byte{0}) {
		if bytes.Equal(kv, want) {
			return true
		}
	}
	return false
}

// find lists the living processes that belong to rec.
//
// A process belongs when it carries the mark. A process of the recorded session
// or group belongs too, but only while that number is provably still ours: its
// leader exists with the recorded start time (alive or as a zombie), or another
// member carries the mark. Otherwise the number may have been recycled.
func find(rec record) ([]stat, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var ours, members []stat
	numberIsOurs := false
	self := os.Getpid()
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == self {
			continue
		}
		st, err := readStat(pid)
		if err != nil {
			continue // gone meanwhile
		}
		if rec.PID != 0 && pid == rec.PID && st.start == rec.Start {
			numberIsOurs = true
		}
		if st.dead {
			continue
		}
		member := rec.PID != 0 && (st.group == rec.PID || st.session == rec.PID)
		switch {
		case marked(pid, rec.Mark):
			ours = append(ours, st)
			numberIsOurs = numberIsOurs || member
		case member:
			members = append(members, st)
		}
	}
	if numberIsOurs {
		ours = append(ours, members...)
	}
	return ours, nil
}

// killAll kills every process that belongs to rec until two sweeps in a row find
// none (a process that is just between fork and exec can hide from one), and
// returns how many it found. It ends with an error when ctx ends.
func killAll(ctx context.Context, rec record) (int, error) {
	seen := map[int]bool{}
	pause := time.Millisecond
	for quiet := 0; quiet < 2; {
		found, err := find(rec)
		if err != nil {
			return len(seen), err
		}
		if len(found) == 0 {
			quiet++
			continue
		}
		quiet = 0
		kill(rec, found, seen)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return len(seen), fmt.Errorf("%d processes do not die: %w", len(found), ctx.Err())
		}
		pause = min(2*pause, 50*time.Millisecond)
	}
	return len(seen), nil
}

// kill sends SIGKILL to the processes, by group where the group is theirs: that
// is one step for the kernel, so a fork bomb cannot outrun it.
func kill(rec record, found []stat, seen map[int]bool) {
	leaders := map[int]bool{rec.PID: rec.PID != 0} // a found member proves the number ours
	for _, st := range found {
		seen[st.pid] = true
		leaders[st.pid] = true
	}
	groups := map[int]bool{}
	for _, st := range found {
		if leaders[st.group] && !groups[st.group] {
			groups[st.group] = true
			_ = syscall.Kill(-st.group, syscall.SIGKILL)
		}
	}
	for _, st := range found {
		killOne(st)
	}
}

// killOne kills the process that st describes and never another that got its id.
func killOne(st stat) {
	fd, err := unix.PidfdOpen(st.pid, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	if now, err := readStat(st.pid); err == nil && now.start == st.start {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}
