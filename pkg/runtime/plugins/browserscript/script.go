package browserscript

// script mirrors the payload's schema.
type script struct {
	Viewport *struct {
		Width  int     `json:"width"`
		Height int     `json:"height"`
		Scale  float64 `json:"scale"`
	} `json:"viewport"`
	StepTimeoutMS int64  `json:"step_timeout_ms"`
	Steps         []step `json:"steps"`
}

// step has exactly one action set.
type step struct {
	TimeoutMS  int64           `json:"timeout_ms"`
	Goto       *gotoStep       `json:"goto"`
	Wait       *waitStep       `json:"wait"`
	Click      *clickStep      `json:"click"`
	Type       *typeStep       `json:"type"`
	Press      *pressStep      `json:"press"`
	Select     *selectStep     `json:"select"`
	Upload     *uploadStep     `json:"upload"`
	Scroll     *scrollStep     `json:"scroll"`
	Read       *readStep       `json:"read"`
	Assert     *assertStep     `json:"assert"`
	Screenshot *screenshotStep `json:"screenshot"`
	UITree     *uiTreeStep     `json:"ui_tree"`
}

type gotoStep struct {
	URL string `json:"url"`
}

type waitStep struct {
	Visible string  `json:"visible"`
	Hidden  string  `json:"hidden"`
	Text    *string `json:"text"`
	IdleMS  int64   `json:"idle_ms"`
}

type clickStep struct {
	Selector string `json:"selector"`
}

type typeStep struct {
	Selector string `json:"selector"`
	Text     string `json:"text"`
	Secret   string `json:"secret"`
	Clear    *bool  `json:"clear"`
}

type pressStep struct {
	Key      string `json:"key"`
	Selector string `json:"selector"`
}

type selectStep struct {
	Selector string `json:"selector"`
	Option   string `json:"option"`
}

type uploadStep struct {
	Selector string `json:"selector"`
	Input    string `json:"input"`
}

type scrollStep struct {
	Selector string  `json:"selector"`
	DX       float64 `json:"dx"`
	DY       float64 `json:"dy"`
}

type readStep struct {
	Name      string `json:"name"`
	Selector  string `json:"selector"`
	What      string `json:"what"`
	Attribute string `json:"attribute"`
}

type assertStep struct {
	Selector string  `json:"selector"`
	Visible  *bool   `json:"visible"`
	Text     *string `json:"text"`
	Value    *string `json:"value"`
	Title    *string `json:"title"`
	URL      *string `json:"url"`
}

type screenshotStep struct {
	Name string `json:"name"`
}

type uiTreeStep struct {
	Name string `json:"name"`
}

// actor does one action; it is what each kind of step implements.
type actor interface {
	do(*player) error
}

// action returns the step's action and its name.
func (s step) action() (string, actor) {
	switch {
	case s.Goto != nil:
		return "goto", s.Goto
	case s.Wait != nil:
		return "wait", s.Wait
	case s.Click != nil:
		return "click", s.Click
	case s.Type != nil:
		return "type", s.Type
	case s.Press != nil:
		return "press", s.Press
	case s.Select != nil:
		return "select", s.Select
	case s.Upload != nil:
		return "upload", s.Upload
	case s.Scroll != nil:
		return "scroll", s.Scroll
	case s.Read != nil:
		return "read", s.Read
	case s.Assert != nil:
		return "assert", s.Assert
	case s.Screenshot != nil:
		return "screenshot", s.Screenshot
	case s.UITree != nil:
		return "ui_tree", s.UITree
	}
	return "none", nil
}
