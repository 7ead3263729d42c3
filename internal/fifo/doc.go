// Package fifo implements a queue whose memory follows its length. A channel takes the memory of its whole capacity,
// and each shard of a server has queues that are nearly always empty.
package fifo
