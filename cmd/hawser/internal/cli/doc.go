// Package cli is the command line: what the arguments mean, what is printed,
// and which exit code says how it went. Commands print for people, or with
// `-o json` for programs; results go to stdout, everything else to stderr.
package cli
