package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// output is a command's -o flag.
type output string

const (
	outputText output = "text"
	outputJSON output = "json"
)

func (o *output) String() string { return string(*o) }
func (o *output) Type() string   { return "text|json" }

// Set takes the flag's value.
func (o *output) Set(s string) error {
	switch output(s) {
	case outputText, outputJSON:
		*o = output(s)
		return nil
	default:
		return fmt.Errorf("must be text or json")
	}
}

// outputFlag gives a command its -o flag.
func outputFlag(cmd *cobra.Command) *output {
	o := outputText
	cmd.Flags().VarP(&o, "output", "o", "print for people (text) or programs (json)")
	return &o
}

// line prints a value as one line of JSON.
func line(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// document prints a value as JSON that people can read too.
func document(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// terminal reports whether w is one.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
