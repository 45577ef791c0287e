package agentapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/eligibility"
	"github.com/berth-dev/berth/pkg/protocol"
)

// Bounds of what a sync may hold beside those of pkg/berth.
const (
	maxHeld           = 1024
	maxSchemaBytes    = 64 << 10
	maxDescriptionLen = 2000
	maxHardwareIDLen  = 200
	maxRequiresLen    = 1000
)

func checkSync(req protocol.SyncRequest) error {
	var f berth.Faults
	if !printable(req.Instance, 64) || len(req.Instance) < 8 {
		f.Add("instance", "it is no name of a process", "send 8 to 64 random characters, the same for the process's life")
	}
	for _, e := range []struct {
		path  string
		epoch berth.Epoch
	}{{"epoch", req.Epoch}, {"journal_epoch", req.JournalEpoch}} {
		if e.epoch < 0 || e.epoch > maxCounter {
			f.Add(e.path, "it is not an epoch", "send 0, or what sync gave")
		}
	}
	if req.AgentVersion != "" && !printable(req.AgentVersion, 64) {
		f.Add("agent_version", "it is too long or has control characters", "send at most 64 printable characters, without < and >")
	}
	checkPlugins(&f, req.Plugins)
	checkDevices(&f, req.Devices)
	checkHeld(&f, req.Held)
	return f.Err()
}

func checkPlugins(f *berth.Faults, plugins []protocol.Plugin) {
	if len(plugins) > berth.MaxPluginsPerHost {
		f.Add("plugins", fmt.Sprintf("%d plugins", len(plugins)), fmt.Sprintf("send at most %d", berth.MaxPluginsPerHost))
		return
	}
	seen := map[berth.PluginVersion]bool{}
	for i, p := range plugins {
		path := fmt.Sprintf("plugins[%d]", i)
		if !berth.ValidName(p.Name) {
			f.Add(path+".name", "it is no plugin's name", "use lower-case letters, digits, dots, hyphens and underscores")
		}
		if len(p.Version) > 64 || !eligibility.ValidVersion(p.Version) {
			f.Add(path+".version", "it is no full semantic version", "write it like 1.4.0")
		}
		if seen[p.PluginVersion] {
			f.Add(path, "the version stands twice in the list", "send each version once")
		}
		seen[p.PluginVersion] = true
		if len(p.Description) > maxDescriptionLen || !text(p.Description, "\n\t") {
			f.Add(path+".description", "it is too long or has control characters", fmt.Sprintf("send at most %d bytes of plain text", maxDescriptionLen))
		}
		if _, err := eligibility.Join("", p.Requires); len(p.Requires) > maxRequiresLen || err != nil {
			f.Add(path+".requires", "it is no selector", "write label=value terms joined by commas, for example driver=chromium")
		}
		checkSchema(f, path+".schema", p.Schema)
		checkSchema(f, path+".result_schema", p.ResultSchema)
	}
}

func checkSchema(f *berth.Faults, path string, doc json.RawMessage) {
	var schema map[string]json.RawMessage
	if len(doc) > maxSchemaBytes || (len(doc) > 0 && json.Unmarshal(doc, &schema) != nil) {
		f.Add(path, "it is no JSON object or too long", fmt.Sprintf("send a JSON Schema of at most %d bytes", maxSchemaBytes))
	}
}

func checkDevices(f *berth.Faults, devices []protocol.Device) {
	if len(devices) > berth.MaxDevicesPerHost {
		f.Add("devices", fmt.Sprintf("%d devices", len(devices)), fmt.Sprintf("send at most %d", berth.MaxDevicesPerHost))
		return
	}
	seen := map[[2]string]bool{}
	for i, d := range devices {
		path := fmt.Sprintf("devices[%d]", i)
		if !berth.ValidName(d.Driver) {
			f.Add(path+".driver", "it is no driver's name", "use lower-case letters, digits, dots, hyphens and underscores")
		}
		if !printable(d.HardwareID, maxHardwareIDLen) {
			f.Add(path+".hardware_id", "it is empty, too long or has control characters, < or >", fmt.Sprintf("send at most %d printable bytes", maxHardwareIDLen))
		}
		key := [2]string{d.Driver, d.HardwareID}
		if seen[key] {
			f.Add(path+".hardware_id", "the device stands twice in the list", "send each device once")
		}
		seen[key] = true
		if !printable(d.Name, berth.MaxNameLen) {
			f.Add(path+".name", "it is empty, too long or has control characters, < or >", fmt.Sprintf("send at most %d printable bytes", berth.MaxNameLen))
		}
		if d.Health != "" && !d.Health.Valid() {
			f.Add(path+".health", "it is no health", "use good, suspect or quarantined")
		}
		if d.HighestFence < 0 || d.HighestFence > maxCounter {
			f.Add(path+".highest_fence", "it is no fence", "send 0, or the highest of the agent's journal")
		}
		checkLabels(f, path+".labels", d.Labels)
	}
}

// checkLabels holds a host's labels to the rules of labels; what begins with
// berth.dev/ is Berth's own to say.
func checkLabels(f *berth.Faults, path string, labels map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if strings.HasPrefix(key, berth.ReportedLabelPrefix) {
			f.Add(path, fmt.Sprintf("%q: only Berth itself says this", berth.Clip(key, 40)), "leave labels that begin with "+berth.ReportedLabelPrefix+" out")
			return
		}
	}
	eligibility.CheckLabels(path, labels, f)
}

func checkHeld(f *berth.Faults, held []protocol.HeldAttempt) {
	if len(held) > maxHeld {
		f.Add("held", fmt.Sprintf("%d attempts", len(held)), fmt.Sprintf("send at most %d", maxHeld))
		return
	}
	seen := map[berth.AttemptID]bool{}
	for i, h := range held {
		path := fmt.Sprintf("held[%d]", i)
		checkHolder(f, path, h.Attempt, h.Fence)
		if seen[h.Attempt] {
			f.Add(path+".attempt", "the attempt stands twice in the list", "send each attempt once")
		}
		seen[h.Attempt] = true
	}
}

func checkHeartbeat(req protocol.HeartbeatRequest) error {
	var f berth.Faults
	if len(req.Health) > berth.MaxDevicesPerHost {
		f.Add("health", fmt.Sprintf("%d devices", len(req.Health)), fmt.Sprintf("send at most %d", berth.MaxDevicesPerHost))
		return f.Err()
	}
	for _, id := range slices.Sorted(maps.Keys(req.Health)) {
		health := req.Health[id]
		if !berth.ValidID(string(id)) {
			f.Add("health", "a key is no device's id", "send the ids as sync gave them")
		} else if !health.Valid() {
			f.Add("health."+string(id), "it is no health", "use good, suspect or quarantined")
		}
	}
	return f.Err()
}
