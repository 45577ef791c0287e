package main

import (
	"errors"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// secretFlags say where passwords come from. No flag holds one: command lines
// are seen by everybody on the machine, and kept in the shell's history.
type secretFlags struct {
	stdin bool
	file  string
}

func (s *secretFlags) add(cmd *cobra.Command, lines string) {
	cmd.Flags().BoolVar(&s.stdin, "password-stdin", false, "read the password from standard input"+lines)
	cmd.Flags().StringVar(&s.file, "password-file", "", "read the password from this file"+lines)
}

// lines reads n secrets from where the flags say, one a line; ok is false where
// they say nothing.
func (c *cli) lines(from secretFlags, n int) (secrets []string, ok bool, err error) {
	if from.stdin && from.file != "" {
		return nil, false, &usageError{what: "--password-stdin and --password-file exclude each other"}
	}
	if from.stdin {
		from.file = "-"
	}
	if from.file == "" {
		return nil, false, nil
	}
	b, err := c.read(from.file)
	if err != nil {
		return nil, false, err
	}
	if n == 1 {
		s, err := nonEmpty(strings.TrimRight(string(b), "\r\n"))
		return []string{s}, true, err
	}
	for line := range strings.Lines(string(b)) {
		secrets = append(secrets, strings.TrimRight(line, "\r\n"))
	}
	if len(secrets) != n {
		return nil, false, &usageError{what: "the current password and the new one are wanted, each on a line of its own"}
	}
	return secrets, true, nil
}

// ask reads a secret from a terminal without echo. remedy is what to do where
// nobody is there.
func (c *cli) ask(prompt, remedy string) (string, error) {
	f, ok := c.stdin.(*os.File)
	if !ok || !terminal(f) {
		return "", &usageError{what: "nobody is there to ask for the password", remedy: remedy}
	}
	// Not say: the cursor stays on the line.
	_, _ = io.WriteString(c.stderr, prompt+": ")
	b, err := term.ReadPassword(int(f.Fd()))
	c.say("")
	if err != nil {
		return "", errors.New("cannot read what was typed")
	}
	return nonEmpty(string(b))
}

const passwordRemedy = "pass it with --password-stdin or --password-file"

// newPassword reads a password that is to be set, from a person twice.
func (c *cli) newPassword(from secretFlags, whose string) (string, error) {
	secrets, ok, err := c.lines(from, 1)
	if err != nil || ok {
		return first(secrets), err
	}
	password, err := c.ask("New password of "+whose, passwordRemedy)
	if err != nil {
		return "", err
	}
	again, err := c.ask("Again", passwordRemedy)
	if err == nil && again != password {
		err = &remedyError{what: "the two passwords differ", remedy: "type the same one twice"}
	}
	return password, err
}

func first(s []string) string {
	if len(s) == 0 {
		return ""
	}
	return s[0]
}

func nonEmpty(secret string) (string, error) {
	if secret == "" {
		return "", &usageError{what: "the password is empty", remedy: "type it, or pass it with --password-stdin"}
	}
	return secret, nil
}
