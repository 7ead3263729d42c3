// Package e2e tests clusters of real server processes from outside: kill −9, signals, certificates, full disks, the
// commands, and whether a run on a cluster has the bits of a run without one.
//
//	go test ./e2e/...                       all of it; skipped by -short
//	ROWRAFT_E2E_SEED=7 go test ./e2e/...    the random moments of seed 7
//
// # Method
//
// Counters: a table of SGD with learning rate 1, zeros at first; client r pushes
// the gradient −1 in dimension r. So a row is an exact count of pushes, and every
// push that was lost or applied twice shows as a difference from what was
// acknowledged. Readers check all along that a client never sees less than it has
// been told is there, nor more than was ever sent.
//
// A test waits for what it needs (pushes acknowledged, a leader, an index), never
// for time to pass. Processes are ended by their id; at the end no process may be
// left that runs a binary of this package.
package e2e
