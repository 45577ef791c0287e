package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// constructors makes the commands below `berth`, in the order of the help. A
// new command is a file with its constructor, and a line here.
func constructors() []func(*cli) *cobra.Command {
	return []func(*cli) *cobra.Command{
		newUpCommand,
		newLoginCommand,
		newLogoutCommand,
		newTaskCommand,
		newScheduleCommand,
		newBulkCommand,
		newDeadLetterCommand,
		newInputCommand,
		newDeviceCommand,
		newHostCommand,
		newPoolCommand,
		newPluginCommand,
		newUserCommand,
		newPasswordCommand,
		newKeyCommand,
		newAdminCommand,
		newSecretCommand,
		newSigningKeyCommand,
		newMasterKeyCommand,
		newAuditCommand,
		newMigrateCommand,
		newHealthcheckCommand,
		newVersionCommand,
	}
}

// newRootCommand makes the whole tree of commands.
func newRootCommand(c *cli) *cobra.Command {
	root := &cobra.Command{
		Use:           "berth",
		Short:         "Run tasks on pools of devices",
		Long:          "Berth runs tasks on pools of devices.\n\nLog in with `berth login`, then submit a task with `berth task submit`.",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return flagError(cmd.CommandPath(), err)
	})
	flags := root.PersistentFlags()
	flags.StringVarP(&c.output, "output", "o", "table", "table, or json in the API's own shape")
	flags.StringVar(&c.url, "url", "", "address of the server (default: BERTH_URL, or the last login's)")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if c.output != "table" && c.output != "json" {
			return &usageError{command: cmd.CommandPath(), what: fmt.Sprintf("--output %q is neither table nor json", c.output)}
		}
		return nil
	}
	for _, construct := range constructors() {
		root.AddCommand(construct(c))
	}
	return root
}

// group makes a command that only holds others.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs, RunE: func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return &usageError{command: cmd.CommandPath(), what: fmt.Sprintf("there is no command %q", args[0])}
	}}
	cmd.AddCommand(commands...)
	return cmd
}

// exactly and atLeast check the number of arguments; names is what they are.
func exactly(n int, names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		if n == 0 {
			return &usageError{command: cmd.CommandPath(), what: fmt.Sprintf("it takes no argument %q", args[0])}
		}
		return &usageError{command: cmd.CommandPath(), what: "it takes " + names}
	}
}

func atLeast(n int, names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= n {
			return nil
		}
		return &usageError{command: cmd.CommandPath(), what: "it takes " + names}
	}
}
