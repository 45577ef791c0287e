//go:build race

package harness

// buildFlags: under the race detector the programs are built with it, too.
var buildFlags = []string{"-race"}
