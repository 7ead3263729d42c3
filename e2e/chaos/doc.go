// Package chaos runs clients and faults against a cluster, in rounds, and judges what the run recorded.
//
// A round has a safety phase with faults, the end of all faults, a liveness phase in which the cluster must work again,
// and final reads of all rows and digests. A [Driver] starts the servers: nodes in virtual time (package sim), or
// processes (cmd/rowraft-chaos).
package chaos
