// Package load is the work a cluster does while faults are injected: clients, the
// shipped package client, that push counters and read them back.
//
// Rows are vector clocks (package history): client c pushes the gradient −1 in its
// own dimension of one or several rows, spread over all shards, one call at a time,
// and waits until the client package has a definite answer. Every call goes into
// the history. Each client also has some rows for itself, which it deletes now and then.
package load
