// Package debug holds the command `rowraft debug zip`, which collects the state of a cluster in one file.
package debug
