// Package demo holds the command `rowraft demo`: it trains on a cluster of local processes, kills a leader, and counts
// lost and doubled pushes.
package demo
