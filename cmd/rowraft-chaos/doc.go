// Command rowraft-chaos injects faults into a cluster on this machine, while clients count, and checks that
// no update was lost or doubled and that no shard forked. The cluster consists of real server processes, or
// of nodes in this process and in virtual time.
package main
