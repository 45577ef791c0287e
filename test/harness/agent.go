package harness

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/hostagent"
)

// AgentOptions describe a Host Agent.
type AgentOptions struct {
	Name                string
	Processes, Browsers int
	// Labels for every device, name=value.
	Labels []string
	// Loopback lets its browsers open pages of this machine.
	Loopback bool
	// PluginDir holds plugins that are programs; "" for none.
	PluginDir string
	// API is the index of the API process that it speaks to; Server the address
	// of something in between, "" for none.
	API    int
	Server string
	// Env is added to its environment.
	Env map[string]string
}

// Agent is a Host Agent of the cluster.
type Agent struct {
	*Daemon
	// StateDir holds its key and journal.
	StateDir string
	// Token is the one-time token that it enrolled with.
	Token string
	// HostID of the host.
	HostID string

	past [][]hostagent.Record // the journals of the runs before the current one
}

// AddAgent enrols a new host through the API and starts its agent; it returns
// when the agent has synced.
func (c *Cluster) AddAgent(tb testing.TB, o AgentOptions) *Agent {
	tb.Helper()
	a := c.NewAgent(tb, o)
	c.Agents = append(c.Agents, a)
	a.Start(tb)
	a.HostID = a.AwaitLine(tb, Patience, "synced", func(l Line) bool { return l.Text("message") == "synced" }).Text("host_id")
	return a
}

// NewAgent makes an agent with a token to enrol with; it is not started.
func (c *Cluster) NewAgent(tb testing.TB, o AgentOptions) *Agent {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	token, err := c.Client.CreateEnrolmentToken(ctx, client.EnrolmentTokenSpec{HostNamePattern: o.Name})
	if err != nil {
		tb.Fatalf("enrolment token: %v", err)
	}
	a := &Agent{Token: token.Token, StateDir: filepath.Join(c.Folder, "agent-"+o.Name)}
	if o.Server == "" {
		o.Server = c.APIs[o.API].URL()
	}
	a.Daemon = &Daemon{Name: "hostagent-" + o.Name, Program: "hostagent", folder: c.Folder, Env: map[string]string{
		"BERTH_SERVER": o.Server, "BERTH_STATE_DIR": a.StateDir, "BERTH_HOST_NAME": o.Name,
		"BERTH_ENROLMENT_TOKEN_FILE": c.write(tb, "token-"+o.Name, token.Token+"\n"),
		"BERTH_ADMIN_LISTEN":         "127.0.0.1:0", "BERTH_LOG_LEVEL": "debug",
		"BERTH_PROCESS_SLOTS": strconv.Itoa(o.Processes), "BERTH_BROWSER_CONTEXTS": strconv.Itoa(o.Browsers),
		"BERTH_LABELS": strings.Join(o.Labels, ","), "BERTH_ALLOW_LOOPBACK": strconv.FormatBool(o.Loopback),
		"BERTH_PLUGIN_DIR": o.PluginDir,
	}}
	maps.Copy(a.Env, o.Env)
	return a
}

// Start starts the agent, again perhaps. What the journal says of the run before
// is kept: a new agent compacts it.
func (a *Agent) Start(tb testing.TB) {
	tb.Helper()
	if len(a.Runs()) > 0 {
		a.past = append(a.past, a.Journal(tb))
	}
	a.Daemon.Start(tb)
}

// Clone starts another agent of the same host on a copy of the state directory,
// as a machine that was restored from a snapshot does. It returns when it has
// synced.
func (c *Cluster) Clone(tb testing.TB, a *Agent, name string) *Agent {
	tb.Helper()
	b := &Agent{Token: a.Token, HostID: a.HostID, StateDir: filepath.Join(c.Folder, "agent-"+name)}
	b.past = append(slices.Clone(a.past), a.Journal(tb))
	if err := os.CopyFS(b.StateDir, os.DirFS(a.StateDir)); err != nil {
		tb.Fatal(err)
	}
	b.Daemon = &Daemon{Name: "hostagent-" + name, Program: "hostagent", folder: c.Folder, Env: maps.Clone(a.Env)}
	b.Env["BERTH_STATE_DIR"], b.Env["BERTH_ADMIN_LISTEN"] = b.StateDir, "127.0.0.1:0"
	c.Agents = append(c.Agents, b)
	b.Start(tb)
	b.AwaitSynced(tb)
	return b
}

// AwaitSynced waits until the current run has synced for the first time.
func (a *Agent) AwaitSynced(tb testing.TB) {
	tb.Helper()
	a.AwaitLine(tb, Patience, "synced", func(l Line) bool { return l.Text("message") == "synced" })
}

// Journal reads the agent's journal.
func (a *Agent) Journal(tb testing.TB) []hostagent.Record {
	tb.Helper()
	records, err := hostagent.ReadJournal(a.StateDir)
	if err != nil {
		tb.Fatal(err)
	}
	return records
}

// Journals are the journals of all runs, each with what that run itself wrote.
func (a *Agent) Journals(tb testing.TB) [][]hostagent.Record {
	tb.Helper()
	var out [][]hostagent.Record
	var last time.Time
	for _, all := range append(a.past[:len(a.past):len(a.past)], a.Journal(tb)) {
		var own []hostagent.Record
		for _, r := range all {
			summary := r.Attempt == "" && r.Device != "" // of a compaction
			if !summary && r.At.After(last) {
				own = append(own, r)
			}
		}
		if len(own) > 0 {
			last = own[len(own)-1].At
		}
		out = append(out, own)
	}
	return out
}
