// Package offline reads the logs and snapshots of a node that does not run, and changes none.
package offline
