// Package checkpoint holds the commands `rowraft checkpoint`.
//
// Create, restore and the policies call the leader of the scheduler. List, verify and delete read the destination
// themselves and need no cluster.
package checkpoint
