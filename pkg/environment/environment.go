// Package environment reads a program's configuration from its environment into
// a struct, as github.com/caarlos0/env does, and speaks of variables by their
// names: in faults, in help, and where a variable is misspelt.
package environment

import (
	"fmt"
	"io"
	"reflect"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/caarlos0/env/v11"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
)

// Read fills into, a pointer to a struct with env tags, from vars. A value that
// cannot be read leaves its field as it is and becomes a fault that names the
// variable; all are noted at once. vars is not changed.
func Read(into any, vars map[string]string, f *berth.Faults) {
	readable := make(map[string]string, len(vars))
	for name, value := range vars {
		readable[name] = value
	}
	for _, v := range variables(reflect.TypeOf(into).Elem(), "") {
		if what, remedy := v.fault(vars[v.Name]); what != "" {
			f.Add(v.Name, what, remedy)
			delete(readable, v.Name)
		}
	}
	err := env.ParseWithOptions(into, env.Options{
		Environment: readable,
		FuncMap: map[reflect.Type]env.ParserFunc{
			reflect.TypeFor[redact.String](): func(v string) (any, error) { return redact.NewString(v), nil },
		},
	})
	if err != nil {
		f.Add("environment", err.Error(), "")
	}
}

// Variable is one that a struct reads.
type Variable struct {
	Name string
	// About is the field's about tag: what it is for, in a few words.
	About string
	// Default is the field's envDefault tag; "" without one.
	Default string
	// Secret: its value may stand in the file that <Name>_FILE names.
	Secret bool

	kind reflect.Type
}

// Variables lists what of, a pointer to a struct, reads, in the order of its
// fields.
func Variables(of any) []Variable { return variables(reflect.TypeOf(of).Elem(), "") }

func variables(t reflect.Type, prefix string) []Variable {
	var found []Variable
	for i := range t.NumField() {
		field := t.Field(i)
		name := field.Tag.Get("env")
		switch {
		case name == "-" || !field.IsExported():
		case name != "":
			found = append(found, Variable{
				Name: prefix + name, About: field.Tag.Get("about"), Default: field.Tag.Get("envDefault"),
				Secret: field.Type == reflect.TypeFor[redact.String](), kind: field.Type,
			})
		case field.Type.Kind() == reflect.Struct:
			found = append(found, variables(field.Type, prefix+field.Tag.Get("envPrefix"))...)
		}
	}
	return found
}

// fault says what is wrong with a value of the variable, "" when it can be read
// or is not set.
func (v Variable) fault(value string) (what, remedy string) {
	if value == "" {
		return "", ""
	}
	var err error
	var kind string
	switch {
	case v.kind == reflect.TypeFor[time.Duration]():
		_, err = time.ParseDuration(value)
		kind, remedy = "duration", "use a duration such as 15s"
	case v.kind.Kind() == reflect.Int:
		_, err = strconv.ParseInt(value, 10, 32)
		kind, remedy = "number", "use a number such as 2"
	case v.kind.Kind() == reflect.Bool:
		_, err = strconv.ParseBool(value)
		kind, remedy = "truth value", "use true or false"
	}
	if err == nil {
		return "", ""
	}
	return fmt.Sprintf("%q is no %s", berth.Clip(value, 30), kind), remedy
}

// PrintHelp lists the variables of a struct, with their defaults; defaults has
// those that the struct does not tag, by name.
func PrintHelp(w io.Writer, of any, defaults map[string]string) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "\nEnvironment:")
	for _, v := range Variables(of) {
		about, standard := v.About, v.Default
		if d, ok := defaults[v.Name]; ok {
			standard = d
		}
		if v.Secret {
			about += "; or " + v.Name + "_FILE, a file that holds it"
		}
		if standard != "" {
			about += " (default " + standard + ")"
		}
		_, _ = fmt.Fprintf(table, "  %s\t%s\n", v.Name, about)
	}
	_ = table.Flush()
}
