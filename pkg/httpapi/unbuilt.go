package httpapi

import "github.com/berth-dev/berth/pkg/problem"

// errUnbuilt answers routes whose handler is being built.
var errUnbuilt error = &problem.Error{Status: 501, Code: "not_implemented", Title: "Not implemented"}
