// Package cli is what the command lines of rowraft's binaries share: exit codes and
// the errors that lead to them, output for people and for programs, flags from the
// environment, and help that names the nearest command or flag.
//
// The names of exit codes and of JSON fields are a contract with scripts.
package cli
