package berth

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Device is what a task holds exclusively. Its state has four axes, never one
// flag: presence, health, admin and occupancy.
type Device struct {
	ID       DeviceID
	Host     HostID
	HostName string
	Pool     PoolID
	PoolName string
	Driver   string // chromium, process, adb
	// HardwareID is the driver's name for it.
	HardwareID string
	// HardwareUnique: HardwareID is unique by itself (a phone's serial); else
	// it is unique per host and driver (a slot, a context).
	HardwareUnique bool
	Name           string
	// Labels in force: what the agent reports, overridden by AdminLabels, plus
	// those of prefix berth.dev/.
	Labels map[string]string
	// AdminLabels are those that operators set.
	AdminLabels map[string]string
	// Presence: the host's agent reported it at its last sync.
	Present bool
	Health  Health
	// HealthRecord is what Health rests on.
	HealthRecord HealthRecord
	Admin        AdminState
	// AdminNote is what the operator said about Admin.
	AdminNote string
	// ConflictHost is another host whose agent reported the same unique
	// hardware id; "" without a conflict.
	ConflictHost HostID
	// Unclean: work that was not seen to end may still touch it.
	Unclean   bool
	Occupancy Occupancy
	Fence     Fence
	// The holder's coordinates; "" when free.
	Attempt   AttemptID
	Task      TaskID
	CreatedAt time.Time
	UpdatedAt time.Time
}

// Health of a device.
type Health string

// The healths.
const (
	HealthGood        Health = "good"
	HealthSuspect     Health = "suspect"
	HealthQuarantined Health = "quarantined"
)

// Valid reports whether h is a health.
func (h Health) Valid() bool {
	return h == HealthGood || h == HealthSuspect || h == HealthQuarantined
}

// AdminState is what operators decided about a device.
type AdminState string

// The admin states.
const (
	AdminActive      AdminState = "active"
	AdminCordoned    AdminState = "cordoned"
	AdminMaintenance AdminState = "maintenance"
	AdminRetired     AdminState = "retired"
)

// CheckAdmin judges what an operator decides about a device. Retired is not
// decided so: that also ends what the device holds.
func CheckAdmin(admin AdminState, note string) error {
	var f Faults
	switch admin {
	case AdminActive, AdminCordoned, AdminMaintenance:
	case AdminRetired:
		f.Add("admin", "a device is not retired by setting its state", "retire it, which also ends what it holds")
	default:
		f.Add("admin", fmt.Sprintf("%q is no state that an operator sets", Clip(string(admin), 40)), "use active, cordoned or maintenance")
	}
	checkNote(note, &f)
	return f.Err()
}

// CheckNote judges what an operator says about a decision.
func CheckNote(note string) error {
	var f Faults
	checkNote(note, &f)
	return f.Err()
}

// CheckMove judges whether a device may be given to another host. An unclean one
// may not: what may still touch it is the old host's work, of which the new one's
// agent can prove nothing.
func CheckMove(d Device) error {
	message := ""
	switch {
	case !d.HardwareUnique:
		return Invalid("device", "its hardware id is only unique on its own host", "enrol the other host and let its agent report its devices")
	case d.Occupancy == OccupancyHeld:
		message = "cordon it and wait for its attempt's end, or force-release it"
	case d.Occupancy == OccupancyUnclean:
		message = "its host's agent may still be at work on it; once you know that nothing is, say so (berth device clean) and move it then"
	default:
		return nil
	}
	return &WrongStateError{Thing: "device", State: string(d.Occupancy), Message: message}
}

func checkNote(note string, f *Faults) {
	if len(note) > MaxNameLen || !plain(note) {
		f.Add("note", "the note is too long or has control characters", fmt.Sprintf("use at most %d printable bytes", MaxNameLen))
	}
}

// CheckAdminLabels judges the labels that an operator gives to a device.
func CheckAdminLabels(labels map[string]string) error {
	var f Faults
	if len(labels) > MaxLabels {
		f.Add("labels", fmt.Sprintf("%d labels", len(labels)), fmt.Sprintf("use at most %d", MaxLabels))
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		path := "labels." + Clip(key, 40)
		switch {
		case OwnLabel(key):
			f.Add(path, "only Berth itself says this", "choose another name")
		case key == "" || len(key) > MaxNameLen || !plain(key):
			f.Add("labels", fmt.Sprintf("%q is no label's name", Clip(key, 40)), "use letters, digits, - _ . and at most one prefix, such as browser or example.com/rack")
		case len(labels[key]) > MaxNameLen || !plain(labels[key]):
			f.Add(path, "it is no label's value", "use letters, digits, - _ .")
		}
	}
	return f.Err()
}

// plain: every engine can store it, and no terminal takes any of it for a command
// (those of C1, such as U+009B, are as good as ESC to some).
func plain(s string) bool { return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl) }

// Occupancy of a device.
type Occupancy string

// The occupancies.
const (
	OccupancyFree    Occupancy = "free"
	OccupancyHeld    Occupancy = "held"
	OccupancyUnclean Occupancy = "unclean"
)

// OccupancyOf derives the occupancy from the lease and the unclean mark.
func OccupancyOf(holder AttemptID, unclean bool) Occupancy {
	switch {
	case holder != "":
		return OccupancyHeld
	case unclean:
		return OccupancyUnclean
	}
	return OccupancyFree
}

// Placeable is a lease row's one number that says who may be placed on the
// device, whether or not it is held just now.
type Placeable int

// The values of Placeable.
const (
	// PlaceNothing: no task.
	PlaceNothing Placeable = 0
	// PlaceProbes: only tasks that an operator pinned to the device.
	PlaceProbes Placeable = 1
	// PlaceAll: every task that fits.
	PlaceAll Placeable = 2
)

// PlaceableOf decides Placeable from the axes and the host. Whoever raises it
// holds the lease row and judges the host in a later statement (I14).
func PlaceableOf(present bool, health Health, admin AdminState, unclean bool, host HostState, draining bool) Placeable {
	if !present || unclean || host != HostOnline || draining || admin == AdminRetired || admin == AdminMaintenance {
		return PlaceNothing
	}
	if admin == AdminCordoned || health == HealthQuarantined {
		return PlaceProbes
	}
	return PlaceAll
}

// ReportedLabelPrefix is reserved for Berth itself.
const ReportedLabelPrefix = "berth.dev/"

// LabelDevice is the label that pins a task to one device.
const LabelDevice = ReportedLabelPrefix + "device"

// LabelProbe pins like LabelDevice, and also reaches a device that is cordoned
// or quarantined (PlaceProbes). Only operators may ask for it.
const LabelProbe = ReportedLabelPrefix + "probe"

// LabelProtocol is the version of the agent protocol that the device's host
// speaks. Tasks with inputs or secrets ask for InputsProtocol by it.
const LabelProtocol = ReportedLabelPrefix + "protocol"

// OwnLabel reports whether a label says what only Berth knows.
func OwnLabel(key string) bool {
	return key == LabelDevice || key == LabelProbe || key == LabelProtocol
}

// InputsProtocol is the first version of the agent protocol that brings tasks their
// inputs and secrets.
const InputsProtocol = 2

// Deliverable reports whether an attempt may be handed to an agent that speaks a
// version of the protocol: one before InputsProtocol would run a task that brings
// inputs or names secrets without them.
func Deliverable(protocol int, brings bool) bool {
	return !brings || protocol >= InputsProtocol
}

// MergeLabels gives the labels in force: reported ones (less those with the
// reserved prefix), overridden by the admin's, and by
// those of Berth itself.
func MergeLabels(id DeviceID, reported, admin map[string]string, protocol int) map[string]string {
	out := make(map[string]string, len(reported)+len(admin)+3)
	for k, v := range reported {
		if !strings.HasPrefix(k, ReportedLabelPrefix) {
			out[k] = v
		}
	}
	maps.Copy(out, admin)
	out[LabelDevice], out[LabelProbe] = string(id), string(id)
	out[LabelProtocol] = strconv.Itoa(max(protocol, 1))
	return out
}

// Bounds of what a host reports.
const (
	MaxDevicesPerHost = 512
	MaxLabels         = 64
	MaxPluginsPerHost = 128
)
