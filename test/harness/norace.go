//go:build !race

package harness

// buildFlags of go build.
var buildFlags []string
