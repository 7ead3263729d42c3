// Command rowstore measures the row store by itself, in one process and on one
// core: gathering rows beside Go's map, applying gradients, creating rows, bytes
// a row, the pauses of growth, and pulls beside applies of a shard.
//
//	go run ./bench/rowstore --json --check
//
// Rows per second are per second of the measuring thread's CPU time, so that
// what else runs on the machine counts as little as possible; figures of several
// goroutines are per second of the clock. Every figure is a median of rounds
// that take turns. With --check it fails when one misses its bar.
package main
