package main

import (
	"bufio"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

func yesFlag(cmd *cobra.Command, yes *bool) {
	cmd.Flags().BoolVarP(yes, "yes", "y", false, "do not ask")
}

// confirm asks before what cannot be taken back. Where nobody can be asked, only
// --yes will do.
func (c *cli) confirm(cmd *cobra.Command, yes bool, question string) error {
	switch {
	case yes:
		return nil
	case !terminal(c.stdin):
		return &usageError{command: cmd.CommandPath(), what: "nobody is there to confirm it", remedy: "add --yes"}
	}
	_, _ = io.WriteString(c.stderr, question+" [y/N] ") // the cursor stays on the line
	answer, err := bufio.NewReader(c.stdin).ReadString('\n')
	if err != nil {
		c.say("")
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return &remedyError{what: "nothing was done", remedy: "answer y, or add --yes"}
}
