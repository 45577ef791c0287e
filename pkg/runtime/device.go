package runtime

import (
	"context"
	"io"
	"time"

	"github.com/berth-dev/berth/pkg/redact"
)

// DeviceID names a device within one Runtime, such as "chromium-0". It is made
// of letters, digits, '.', '_' and '-', and stays the same over restarts.
type DeviceID string

// Health says whether a device can be used.
type Health string

// The states of health a driver reports.
const (
	// HealthGood: the device answers as it should.
	HealthGood Health = "good"
	// HealthSuspect: the device did not answer the last probe or operation; it
	// may work again, so runs are not refused.
	HealthSuspect Health = "suspect"
	// HealthUnavailable: the device cannot be used until something outside
	// changes (a binary is missing, say). The health message names the remedy.
	HealthUnavailable Health = "unavailable"
)

// Device describes a device at one moment.
type Device struct {
	ID DeviceID `json:"id"`
	// Driver is the name of the driver that owns the device.
	Driver string `json:"driver"`
	// HardwareID identifies the hardware. Where HardwareIDUnique is false it is
	// unique within this host and driver only (slots, browser contexts).
	HardwareID       string `json:"hardware_id"`
	HardwareIDUnique bool   `json:"hardware_id_unique"`
	// Name is for people.
	Name string `json:"name"`
	// Labels never use the prefix "berth.dev/". The map is the caller's own.
	Labels map[string]string `json:"labels"`
	Health Health            `json:"health"`
	// HealthMessage says why Health is not good, with the remedy; empty when good.
	HealthMessage string `json:"health_message,omitempty"`
	// Busy is whether a run or a direct action holds the device. Set by Runtime.
	Busy bool `json:"busy"`
	// Unclean is whether the device could not be cleaned after its last use; it
	// refuses runs until Runtime.Clean succeeds. Set by Runtime.
	Unclean bool `json:"unclean"`
}

// Driver gives the devices of one kind. All methods may be called at the same
// time from several goroutines.
type Driver interface {
	// Name is the driver's name, such as "chromium"; it never changes.
	Name() string
	// Discover lists the devices, ordered by ID, without touching them. A
	// driver whose tools are missing lists its devices as HealthUnavailable.
	Discover(ctx context.Context) ([]Device, error)
	// Probe touches the device and returns its description with fresh health.
	// ErrUnknownDevice when there is no such device.
	Probe(ctx context.Context, id DeviceID) (Device, error)
	// Open gives the exclusive use of a device in a pristine state.
	// ErrUnknownDevice, ErrDeviceLost, or an *ActionError with the remedy.
	Open(ctx context.Context, id DeviceID, opts OpenOptions) (Session, error)
	// Clean returns the device to a pristine state, whatever went on before,
	// and kills what is left of it. The device must not be open.
	Clean(ctx context.Context, id DeviceID) error
	// Close kills everything that the driver started and returns when it is dead.
	// It may be called twice.
	Close() error
}

// OpenOptions is what a session needs to know of the run it serves.
type OpenOptions struct {
	// RunID marks what the session starts; unique among the runs of the host.
	RunID RunID
	// WorkDir is an existing empty directory for the session's files.
	WorkDir string
	// StopWithin is how much time is left, once an action's context ended, until
	// everything that the session started must be dead. Nil: the driver's own.
	StopWithin func() time.Duration
}

// Grace is how long to wait between asking something to stop and killing it, at
// most usual: a quarter of the time that is left, so that killing has the rest.
func (o OpenOptions) Grace(usual time.Duration) time.Duration {
	if o.StopWithin == nil {
		return usual
	}
	return min(usual, max(o.StopWithin()/4, 0))
}

// Session is the exclusive use of one device. Its methods are for one goroutine
// at a time, but Close and Lost may be called at any time.
type Session interface {
	// Device is the device's description when it was opened.
	Device() Device
	// Lost is closed when the device is gone (the browser crashed). It is never
	// closed by Close. May be nil for a device that cannot be lost.
	Lost() <-chan struct{}
	// Close kills what the session started, gives the device back pristine and
	// returns when that is done. An error means that the device is unclean. It
	// may be called twice.
	Close(ctx context.Context) error
}

// Coordinated is a session of a device that another process can reach. Its
// coordinates are handed to plugins that are one.
type Coordinated interface {
	// Coordinates tell how, by lower-case names such as "dir" or "serial"; the map
	// is the caller's own.
	Coordinates() map[string]string
}

// Screen is a session whose device shows something.
type Screen interface {
	// Screenshot returns the visible part as PNG.
	Screenshot(ctx context.Context) (redact.Bytes, error)
	// UITree returns the tree of what is shown.
	UITree(ctx context.Context) (*UINode, error)
}

// UINode is an element of a UI tree. Its content is confidential: it must not be logged.
type UINode struct {
	Role     string    `json:"role"`
	Name     string    `json:"name,omitempty"`
	Value    string    `json:"value,omitempty"`
	Bounds   *Bounds   `json:"bounds,omitempty"`
	Children []*UINode `json:"children,omitempty"`
}

// Bounds is a rectangle in CSS pixels (browser) or device pixels, from the
// top left corner of the screen.
type Bounds struct {
	X      float64 `json:"x"`
	Y      float64 `json:"y"`
	Width  float64 `json:"width"`
	Height float64 `json:"height"`
}

// Target says what an action aims at: an element by Selector, which is waited
// for, or else the point X, Y.
type Target struct {
	Selector string  `json:"selector,omitempty"`
	X        float64 `json:"x,omitempty"`
	Y        float64 `json:"y,omitempty"`
}

// Input is a session whose device can be operated. Each action waits for its
// element until ctx ends; then it returns an *ActionError that says what was
// missing.
type Input interface {
	// Tap clicks or touches the target.
	Tap(ctx context.Context, t Target) error
	// Type focuses the target (unless empty: then what has the focus), replaces
	// its text when clear is set, and types text.
	Type(ctx context.Context, t Target, text redact.String, clear bool) error
	// Press presses one key, optionally with modifiers: "Enter", "Control+a".
	Press(ctx context.Context, key string) error
	// Scroll scrolls by dx, dy pixels, or, with a selector, the element into view first.
	Scroll(ctx context.Context, t Target, dx, dy float64) error
}

// Browser is a session whose device shows web pages.
type Browser interface {
	Screen
	Input
	// Open loads an http or https address and returns when its load event
	// fired. The *ActionError codes are CodeURLRefused and CodeNavigation.
	Open(ctx context.Context, url string) error
	// SetViewport sets the size of the page's visible part in CSS pixels.
	SetViewport(ctx context.Context, width, height int, scale float64) error
	// Select chooses the option with the value or the visible text of a select element.
	Select(ctx context.Context, selector, option string) error
	// SetFiles puts files, by their absolute paths, into a file input element, as
	// if a person had chosen them.
	SetFiles(ctx context.Context, selector string, paths []string) error
	// Query describes the first element that matches, at once; Found is false when none does.
	Query(ctx context.Context, selector string) (Element, error)
	// Page describes the page as a whole.
	Page(ctx context.Context) (PageInfo, error)
	// WaitIdle waits until no request of the page was under way for quiet, or ctx
	// ends. What the page does not wait for, such as streams, its icon and what
	// its workers do, is not looked at.
	WaitIdle(ctx context.Context, quiet time.Duration) error
}

// Element is the state of an element. Its content is confidential.
type Element struct {
	Found   bool
	Visible bool
	Text    string
	Value   string
	// Attributes by name.
	Attributes map[string]string
}

// PageInfo is the state of a page. Its content is confidential.
type PageInfo struct {
	URL   string
	Title string
	// Text is the visible text of the page.
	Text string
}

// Commander is a session that runs commands.
type Commander interface {
	// Command runs one command and returns when it and all that it started are
	// dead. A command that exits by itself, whatever its code, is no error.
	// *ActionError with CodeCommandRefused, CodeCommandStart or CodeOutputLimit;
	// ctx.Err() when ctx ended first.
	Command(ctx context.Context, c Command) (Exit, error)
	// Dir is the directory in which commands run.
	Dir() string
}

// Command is what a Commander runs. Nothing of it may be logged.
type Command struct {
	// Args is the command and its arguments; Args[0] must be allowed.
	Args []string
	// Env is added to a minimal environment.
	Env redact.Strings
	// Stdin is given to the command, which then sees the end of file.
	Stdin redact.Bytes
	// Output gets standard output and standard error as they come.
	Output io.Writer
}

// Exit is how a command ended.
type Exit struct {
	Code int
	// Signal is the name of the signal that ended it, or empty.
	Signal   string
	Duration time.Duration
}
