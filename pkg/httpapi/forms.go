package httpapi

import (
	"net/url"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/berth-dev/berth/pkg/berth"
)

// judgeForms refuses what JSON Schema takes for a value and Go does not, such as
// 1e1 for an integer or a leap second for a time, with the parameter named: the
// generated code would answer that something is wrong. It is for requests that the
// document lets through.
func (op operation) judgeForms(c echo.Context, query url.Values, f *berth.Faults) {
	for _, name := range sorted(op.query) {
		for _, value := range query[name] {
			op.query[name].judge(name, value, f)
		}
	}
	for _, name := range sorted(op.path) {
		op.path[name].judge(name, c.Param(name), f)
	}
}

func (p parameter) judge(name, value string, f *berth.Faults) {
	switch {
	case p.kind == "integer":
		if n, err := strconv.ParseInt(value, 10, 64); err != nil || strconv.FormatInt(n, 10) != value {
			f.Add(name, "must be an integer", "write it in digits, such as 20")
		}
	case p.kind == "boolean" && value != "true" && value != "false":
		f.Add(name, "must be a boolean", "write true or false")
	case p.time:
		if _, err := time.Parse(time.RFC3339Nano, value); err != nil {
			f.Add(name, "is no time that can be", "write it like 2026-11-30T12:00:00Z")
		}
	}
}
