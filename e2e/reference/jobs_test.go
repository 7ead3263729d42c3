package reference

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

func jobID(n byte) (id rowraft.JobID) { id[0], id[15] = n, n; return id }

func drawJob(t *rapid.T, m *Machine) (rowraft.JobID, *Job) {
	id := jobID(rapid.ByteRange(1, 2).Draw(t, "job"))
	return id, m.Jobs[id]
}

// drawMembership draws the next membership of a job mostly, or an old one, the end of
// the job, or the present one with something else in it.
func drawMembership(t *rapid.T, m *Machine, h wire.EntryHeader) []byte {
	id, j := drawJob(t, m)
	w := wire.Membership{Job: id}
	if rapid.IntRange(0, 8).Draw(t, "end") == 0 {
		return wire.MembershipEntry(h, &w)
	}
	w.Generation, w.First = 1, rowraft.Step(rapid.IntRange(1, 3).Draw(t, "first"))
	if j != nil {
		w.Generation = rowraft.Generation(j.Generation + uint64(rapid.IntRange(0, 2).Draw(t, "generation")))
		w.First += rowraft.Step(j.LastClosed)
		if rapid.IntRange(0, 3).Draw(t, "behind") == 0 {
			w.First = max(1, w.First-3)
		}
	}
	for _, rank := range []rowraft.Rank{0, 1, 2, 70, 1023} {
		if rapid.Bool().Draw(t, "member") {
			w.Members = append(w.Members,
				wire.Member{Rank: rank, Incarnation: 1 + rowraft.Incarnation(rapid.IntRange(0, 1).Draw(t, "incarnation"))})
		}
	}
	if len(w.Members) == 0 {
		w.Members = []wire.Member{{Rank: 5, Incarnation: 3}}
	}
	w.Quorum, w.Deadline = rapid.IntRange(0, len(w.Members)).Draw(t, "quorum"), rapid.Uint64Range(0, 2).Draw(t, "deadline")
	if j != nil && rapid.IntRange(0, 5).Draw(t, "again") == 0 {
		w = wire.Membership{Job: id, Generation: rowraft.Generation(j.Generation), First: rowraft.Step(j.First),
			Deadline: j.Deadline, Quorum: int(j.Quorum)}
		for rank, have := range j.Members {
			w.Members = append(w.Members,
				wire.Member{Rank: rowraft.Rank(rank), Incarnation: rowraft.Incarnation(have.Incarnation)})
		}
		slices.SortFunc(w.Members, func(a, b wire.Member) int { return int(a.Rank) - int(b.Rank) })
		w.Deadline += rapid.Uint64Range(0, 1).Draw(t, "other")
	}
	return wire.MembershipEntry(h, &w)
}

// drawStep draws the piece that comes next mostly, and one that does not.
func drawStep(t *rapid.T, m *Machine, h wire.EntryHeader) []byte {
	id, j := drawJob(t, m)
	s := wire.Step{Job: id, Generation: 1, Step: 1, Last: rapid.IntRange(0, 2).Draw(t, "last") > 0}
	members := []uint32{3}
	if j != nil {
		s.Generation, s.Step = rowraft.Generation(j.Generation), rowraft.Step(j.LastClosed+1)
		members = members[:0]
		for rank := range j.Members {
			members = append(members, rank)
		}
		if o := j.Open; o != nil {
			s.Step, s.Piece, s.AfterTable, s.AfterKey = rowraft.Step(o.Step), o.NextPiece, rowraft.TableID(o.Table),
				rowraft.Key(o.Key)
			members = slices.DeleteFunc(members, func(rank uint32) bool { return !o.With.has(rank) })
		}
	}
	slices.Sort(members)
	for i, rank := range members {
		if i == 0 || rapid.IntRange(0, 3).Draw(t, "contributes") > 0 {
			s.Contributors.Add(rowraft.Rank(rank))
		}
	}
	segs := drawRows(t, m, wire.OpPush)
	slices.SortFunc(segs, func(a, b rows) int { return int(a.schema.ID) - int(b.schema.ID) })
	switch rapid.IntRange(0, 25).Draw(t, "wrong") {
	case 0:
		s.Generation++
	case 1:
		s.Step--
		s.Step = max(s.Step, 1)
	case 2:
		s.Step++
	case 3:
		s.Piece++
	case 4:
		s.Piece -= min(s.Piece, 1)
	case 5:
		s.Contributors.Add(9)
	case 6:
		s.AfterKey++
	case 7:
		slices.Reverse(segs)
	}
	s.Positions = drawPositions(t)
	if after := s.AfterTable; after != 0 && rapid.IntRange(0, 5).Draw(t, "beyond") > 0 { // mostly rows that go on
		segs = slices.DeleteFunc(segs, func(r rows) bool { return r.schema.ID <= after })
	}
	s.Payload = payloadOf(segs...)
	return wire.AppendStepEntry(nil, h, &s)
}

func drawPositions(t *rapid.T) (read []rowraft.Position) {
	for part := range rowraft.PositionID(3) {
		if rapid.Bool().Draw(t, "read") {
			read = append(read, rowraft.Position{ID: part, Offset: rapid.Uint64Range(0, 9).Draw(t, "offset")})
		}
	}
	return read
}

// drawClock draws what stands before the segments of a clocked push.
func drawClock(t *rapid.T, m *Machine) []byte {
	id, j := drawJob(t, m)
	c := wire.Clock{Job: id, Incarnation: 1, Clock: rapid.Uint64Range(0, 20).Draw(t, "clock"), Positions: drawPositions(t)}
	if j != nil {
		rank := slices.Min(keys(j.Members))
		c.Rank, c.Incarnation = rowraft.Rank(rank), rowraft.Incarnation(j.Members[rank].Incarnation)
	}
	switch rapid.IntRange(0, 20).Draw(t, "wrong") {
	case 0:
		c.Incarnation++
	case 1:
		c.Rank = 7
	}
	return wire.AppendClock(nil, &c)
}

func keys[V any](m map[uint32]V) (out []uint32) {
	for k := range m {
		out = append(out, k)
	}
	return out
}
