package client

import (
	"iter"
	"sync/atomic"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
)

// perShard has the state of every shard that a cluster can have, on pages that are made when they are used first: a
// client may leave its cluster for another one with more shards.
type perShard[T any] struct {
	init  func(*T) // makes the state of a shard; nil: the zero value
	pages [clustermap.MaxShards / shardsPerPage]atomic.Pointer[[shardsPerPage]T]
}

const shardsPerPage = 16

// at returns the state of a shard. REQUIRES: shard < clustermap.MaxShards.
func (s *perShard[T]) at(shard rowraft.ShardID) *T {
	slot := &s.pages[shard/shardsPerPage]
	page := slot.Load()
	if page == nil {
		page = new([shardsPerPage]T)
		for i := range page {
			if s.init == nil {
				break
			}
			s.init(&page[i])
		}
		if !slot.CompareAndSwap(nil, page) {
			page = slot.Load()
		}
	}
	return &page[shard%shardsPerPage]
}

// all yields the shards that have been used, and their neighbours, in ascending order.
func (s *perShard[T]) all() iter.Seq2[rowraft.ShardID, *T] {
	return func(yield func(rowraft.ShardID, *T) bool) {
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

// ackedIndices has the highest index of an acknowledged batch in each shard: reads of the leader name it as
// their minimum, so that a client sees its own pushes. It never falls while the client stays in its cluster.
type ackedIndices struct{ perShard[atomic.Uint64] }

// dropCluster forgets the indices, which mean nothing in another cluster.
func (a *ackedIndices) dropCluster() {
	for _, index := range a.all() {
		index.Store(0)
	}
}

// raise raises the shard's highest acknowledged index, which later reads name as their minimum.
func (a *ackedIndices) raise(shard rowraft.ShardID, index uint64) {
	for {
		old := a.at(shard).Load()
		if old >= index || a.at(shard).CompareAndSwap(old, index) {
			return
		}
	}
}
