package packer

import (
	"math"
	"slices"
)

// lane is one of the sorted lists that merge reads: the keys of a segment.
type lane struct {
	*segment
	at int // next row
	to int // offset of the lane's rows in summer.to
}

// contender is the next key of a lane. The order of lane numbers decides between equal keys.
type contender struct {
	key  uint64
	lane uint32
}

func (a contender) before(b contender) bool {
	return a.key < b.key || a.key == b.key && a.lane < b.lane
}

// next returns the next key of lane i of n. That of a lane at its end comes after all keys.
func (l *lane) next(i, n int) contender {
	if l.at == l.N {
		return contender{math.MaxUint64, uint32(i + n)}
	}
	return contender{uint64(l.body.Key(l.at)), uint32(i)}
}

// merge appends the different keys of lanes to s.keys, ascending, and for each row of each lane the position of its key
// among them to s.to.
//
// It is a tree of losers (Knuth, The Art of Computer Programming 3, section 5.4.1): a key costs one comparison for each
// doubling of the number of lanes.
func (s *summer) merge(lanes []lane) {
	rows, first := 0, len(s.to)
	for i := range lanes {
		lanes[i].at, lanes[i].to = 0, first+rows
		rows += lanes[i].N
	}
	s.to = slices.Grow(s.to, rows)[:first+rows]
	leaves := 1
	for leaves < len(lanes) {
		leaves *= 2
	}
	// Node i has the loser between its two subtrees; its children are 2i and 2i+1, and lane l is the leaf leaves+l.
	tree := slices.Grow(s.tree[:0], 2*leaves)[:2*leaves]
	s.tree = tree
	for i := range leaves {
		tree[leaves+i] = contender{math.MaxUint64, math.MaxUint32}
		if i < len(lanes) {
			tree[leaves+i] = lanes[i].next(i, len(lanes))
		}
	}
	// Winners first, then each inner node keeps the loser of its children.
	winner := s.play(1, leaves)
	start := len(s.keys)
	for range rows {
		l := int(winner.lane)
		if len(s.keys) == start || s.keys[len(s.keys)-1] != winner.key {
			s.keys = append(s.keys, winner.key)
		}
		lane := &lanes[l]
		s.to[lane.to+lane.at] = uint32(len(s.keys) - start - 1)
		lane.at++
		winner = lane.next(l, len(lanes))
		for node := (leaves + l) / 2; node > 0; node /= 2 {
			if tree[node].before(winner) {
				tree[node], winner = winner, tree[node]
			}
		}
	}
}

// play returns the winner of the subtree of node and sets the losers in it.
func (s *summer) play(node, leaves int) contender {
	if node >= leaves {
		return s.tree[node]
	}
	a, b := s.play(2*node, leaves), s.play(2*node+1, leaves)
	if b.before(a) {
		a, b = b, a
	}
	s.tree[node] = b
	return a
}
