// Package server holds the commands that run a process of a cluster: `rowraft server`, `rowraft scheduler` and
// `rowraft start`.
//
// Flags come from the command line, the environment (ROWRAFT_…), the variables of training frameworks (start), and the
// file of --config; the first of them that sets a flag wins.
package server
