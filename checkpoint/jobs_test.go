package checkpoint

import (
	"math"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

func rankSet(ranks ...rowraft.Rank) (s wire.RankSet) {
	for _, r := range ranks {
		s.Add(r)
	}
	return s
}

// goldenJobs is what stands in testdata/jobs.hex.
func goldenJobs() stream {
	return stream{
		header: Header{Shard: 2, Applied: 7, LogTime: 1000, Epoch: 4},
		jobs: []Job{{
			ID:         rowraft.JobID{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
			Generation: 3, First: 17, Deadline: 1e9, Quorum: 1, LastClosed: 18,
			Members: []JobMember{{wire.Member{Rank: 1, Incarnation: 4}, 9},
				{wire.Member{Rank: 1023, Incarnation: 5}, math.MaxUint64}},
			Closed:    []ClosedStep{{16, rankSet(0, 1)}, {18, rankSet(1023)}},
			Open:      &OpenStep{Step: 19, NextPiece: 3, Contributors: rankSet(1), Table: 7, Key: 42},
			Positions: []rowraft.Position{{ID: 6, Offset: 256}},
		}, {
			ID:         rowraft.JobID{255, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
			Generation: 1, First: 1, Members: []JobMember{{wire.Member{Rank: 0, Incarnation: 1}, 0}},
		}},
	}
}

func TestImpossibleJobs(t *testing.T) {
	const job = 64 + 16 + 16 + 16
	const members, closed = job + 72, job + 72 + 48
	const open, positions = closed + 2*136, closed + 2*136 + 152
	wantImpossible(t, "jobs.hex", []changedByte{
		{"another number of jobs", 52, 3},
		{"one job fewer", 52, 1},
		{"too many jobs", 53, 2},
		{"no generation", job + 16, 0},
		{"no first step", job + 24, 0},
		{"a first step beyond the last closed one", job + 24, 20},
		{"a quorum above the members", job + 48, 3},
		{"no members", job + 52, 0},
		{"too many members", job + 53, 5},
		{"17 closed steps", job + 56, 17},
		{"too many positions", job + 61, 17},
		{"no open step, and its bytes", job + 64, 0},
		{"reserved bytes", job + 68, 1},
		{"a rank above 1023", members + 1, 4},
		{"a reserved byte of a member", members + 4, 1},
		{"incarnation 0", members + 8, 0},
		{"closed steps that do not ascend", closed, 18},
		{"a closed step above the last", closed + 136, 19},
		{"a closed step without contributors", closed + 8, 0},
		{"an open step that is closed", open, 18},
		{"a key without a table", open + 8, 0},
		{"an open step with a contributor that is no member", open + 24, 3},
		{"an open step without contributors", open + 24, 0},
		{"jobs that do not ascend", positions + 16, 0},
	})
}
