// Package launch says what a process is to do in a cluster that is started the way
// other parameter servers are: one command in every role, told apart by environment
// variables (docs/start.md).
//
// [Read] turns the variables into values of flags; who calls it lets flags and
// ROWRAFT_ variables win. [Values.Plan] checks all of it together, before anything starts.
package launch
