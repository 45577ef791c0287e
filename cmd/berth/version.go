package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// version is set at build time.
var version = "dev"

func newVersionCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: exactly(0, ""),
		RunE: func(*cobra.Command, []string) error {
			if c.json() {
				return c.printJSON(map[string]string{"version": version, "go": runtime.Version()})
			}
			fmt.Fprintf(c.stdout, "berth %s (%s, %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return nil
		},
	}
}
