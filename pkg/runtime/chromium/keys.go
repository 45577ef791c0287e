package chromium

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/berth-dev/berth/pkg/runtime"
)

// key is a key press as the protocol wants it.
type key struct {
	key, code, text, command string
	virtual, modifiers       int
}

// named returns the keys that have names: those of KeyboardEvent.key.
func named(name string) (key, bool) {
	virtual := map[string]int{
		"Backspace": 8, "Tab": 9, "Enter": 13, "Escape": 27, "Space": 32, "PageUp": 33, "PageDown": 34, "End": 35, "Home": 36,
		"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Insert": 45, "Delete": 46,
		"F1": 112, "F2": 113, "F3": 114, "F4": 115, "F5": 116, "F6": 117, "F7": 118, "F8": 119, "F9": 120, "F10": 121, "F11": 122, "F12": 123,
	}
	v, ok := virtual[name]
	if !ok {
		return key{}, false
	}
	k := key{key: name, code: name, virtual: v}
	switch name {
	case "Enter":
		k.text = "\r"
	case "Tab":
		k.text = "\t"
	case "Space":
		k.key, k.text = " ", " "
	}
	return k, true
}

// parseKey reads "Enter", "a", "Control+Shift+ArrowLeft". The error does not
// repeat the key: what is pressed is typed text.
func parseKey(name string) (key, error) {
	unknown := &runtime.ActionError{
		Code:    runtime.CodeUnknownKey,
		Message: "unknown key; use one character or a name such as Enter, Tab, Escape, Backspace, ArrowDown or F5, with Control, Shift, Alt or Meta before a '+'",
	}
	parts := strings.Split(name, "+")
	if strings.HasSuffix(name, "++") || name == "+" { // the plus key itself
		parts = append(strings.Split(strings.TrimSuffix(strings.TrimSuffix(name, "+"), "+"), "+"), "+")
		if name == "+" {
			parts = []string{"+"}
		}
	}
	modifiers := 0
	for _, m := range parts[:len(parts)-1] {
		bit, ok := map[string]int{"Alt": 1, "Control": 2, "Meta": 4, "Shift": 8}[m]
		if !ok {
			return key{}, unknown
		}
		modifiers |= bit
	}
	last := parts[len(parts)-1]
	k, ok := named(last)
	if !ok {
		r, size := utf8.DecodeRuneInString(last)
		if size == 0 || size != len(last) || r == utf8.RuneError || unicode.IsControl(r) {
			return key{}, unknown
		}
		k = character(r)
	}
	k.modifiers = modifiers
	if modifiers&^8 != 0 { // a shortcut types nothing
		k.text = ""
		if modifiers == 2 {
			// Headless has no window system to turn these into editing commands.
			k.command = map[string]string{"a": "selectAll", "c": "copy", "x": "cut", "v": "paste", "z": "undo", "y": "redo"}[k.key]
		}
	}
	return k, nil
}

func character(r rune) key {
	k := key{key: string(r), text: string(r)}
	switch up := unicode.ToUpper(r); {
	case up >= 'A' && up <= 'Z':
		k.code, k.virtual = "Key"+string(up), int(up)
	case r >= '0' && r <= '9':
		k.code, k.virtual = "Digit"+string(r), int(r)
	}
	return k
}
