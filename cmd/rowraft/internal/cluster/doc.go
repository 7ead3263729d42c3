// Package cluster holds the command `rowraft cluster status`, and the status that a cluster without a scheduler has.
package cluster
