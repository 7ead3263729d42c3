package client

import (
	"iter"
	"sync/atomic"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
)

// shardState is what the client knows of one shard.
type shardState struct {
	leader  atomic.Pointer[leaderHint]
	relay   atomic.Pointer[relay]
	probing atomic.Bool   // at most one goroutine looks for a relay
	asking  atomic.Bool   // at most one goroutine asks the replicas for the leader
	acked   atomic.Uint64 // highest index of an acknowledged batch; reads ask for it

	session atomic.Pointer[shardSession]
	opening ctxMutex // one goroutine at a time opens the session
}

// shardStates has the state of every shard that a cluster can have, on pages that are made when they are used first: a
// client may leave its cluster for another one with more shards.
type shardStates struct {
	pages [clustermap.MaxShards / shardsPerPage]atomic.Pointer[[shardsPerPage]shardState]
}

const shardsPerPage = 16

// at returns the state of a shard. REQUIRES: shard < clustermap.MaxShards.
func (s *shardStates) at(shard rowraft.ShardID) *shardState {
	slot := &s.pages[shard/shardsPerPage]
	page := slot.Load()
	if page == nil {
		page = new([shardsPerPage]shardState)
		for i := range page {
			page[i].opening = make(ctxMutex, 1)
		}
		if !slot.CompareAndSwap(nil, page) {
			page = slot.Load()
		}
	}
	return &page[shard%shardsPerPage]
}

// all yields the shards that have been used, and their neighbours, in ascending order.
func (s *shardStates) all() iter.Seq2[rowraft.ShardID, *shardState] {
	return func(yield func(rowraft.ShardID, *shardState) bool) {
		for p := range s.pages {
			page := s.pages[p].Load()
			if page == nil {
				continue
			}
			for i := range page {
				if !yield(rowraft.ShardID(p*shardsPerPage+i), &page[i]) {
					return
				}
			}
		}
	}
}
