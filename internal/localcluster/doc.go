// Package localcluster runs a cluster of real rowraft server processes on this
// machine's loopback: for the demo, the benchmark and the tests.
//
// Ports come from the kernel: the parent listens, hands the sockets to the child
// and closes its own copies, so that a killed server's port refuses connections
// as it would on another machine. Every process started here is ended by Stop,
// by its id, and by the kernel if the parent itself is killed.
package localcluster
