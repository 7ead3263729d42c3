// Package localcluster runs a cluster of real rowraft server processes on this
// machine's loopback: for the demo, the benchmark and the tests.
//
// The kernel chooses the ports. The parent listens, passes the sockets to the child
// and closes its own copies, so that the port of a killed server refuses connections
// as on another machine. Stop ends every process that was started here, by its id;
// the kernel ends them if the parent itself is killed.
package localcluster
