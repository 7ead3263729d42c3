// Package diagnosis finds the problems of a cluster in its status. It is pure. The leader of the scheduler uses it, and
// the command line when no scheduler answers.
//
// A problem is critical if something is not served: a shard without a leader or a majority, a shard or a server that
// refuses pushes or connections, a scheduler without a leader. It is also critical if the rows of a replica are wrong.
// A problem is a warning if all is served with less to spare, and a note if nothing is wrong.
package diagnosis
