// Package fifo has a queue that is as large as what is in it. A channel takes the memory of its whole capacity, and
// each shard of a server has queues that are nearly always empty.
package fifo
