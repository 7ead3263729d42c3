// Package cli is the common part of the command lines of rowraft's binaries: exit codes and
// the errors that cause them, output for people and for programs, flags from the
// environment, and errors that suggest the nearest command or flag.
//
// The names of exit codes and of JSON fields are a contract with scripts.
package cli
