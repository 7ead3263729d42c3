// Package remote calls the cluster that a command line names: the flags that all commands of rowraft have, the
// certificates, and calls of the scheduler's leader.
//
// A command calls with [Call], which repeats the call until --timeout, or with [CallLong], for work that takes as long
// as it takes.
package remote
