package client

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// FuzzPullReply: for any reply to a pull of three rows of one table and one row of another, the caller gets
// either the values of a complete reply or CodeCorrupt.
func FuzzPullReply(f *testing.F) {
	answer := func(presence bool, dtype rowraft.DType) []byte {
		var out []byte
		for _, s := range []wire.Segment{{Table: 1, N: 3, Dim: 2, DType: dtype}, {Table: 2, N: 1, Dim: 1, DType: dtype}} {
			s.Flags = wire.FlagNoKeys
			if presence {
				s.Flags |= wire.FlagPresence
			}
			b := make([]byte, s.Size())
			body := s.Put(b)
			for i := range body.Values {
				body.Values[i] = byte(i)
			}
			if presence {
				body.Presence[0] = 5
			}
			out = append(out, b...)
		}
		return out
	}
	for _, presence := range []bool{false, true} {
		for _, dtype := range []rowraft.DType{rowraft.Float32, rowraft.BFloat16} {
			f.Add(answer(presence, dtype), presence)
		}
	}
	whole := answer(true, rowraft.Float32)
	f.Add(whole[:len(whole)-1], true)
	f.Add(whole[:len(whole)/2], true)
	f.Add(append(append([]byte(nil), whole...), whole...), true)
	f.Fuzz(func(t *testing.T, payload []byte, presence bool) {
		segs := []Segment{
			{Table: testTable(1, 2), Keys: make([]rowraft.Key, 4), Values: make([]float32, 8)},
			{Table: testTable(2, 1), Keys: make([]rowraft.Key, 1), Values: make([]float32, 1)},
		}
		r := request{shard: 3, segments: []segmentRows{{seg: &segs[0], rows: []int32{0, 1, 3}},
			{seg: &segs[1], rows: []int32{0}}}}
		if presence {
			segs[0].Present, segs[1].Present = make([]bool, 4), make([]bool, 1)
		}
		if err := r.scatter(payload, rowraft.Float32, presence); err != nil {
			if rowraft.CodeOf(err) != rowraft.CodeCorrupt {
				t.Errorf("%v has code %v", err, rowraft.CodeOf(err))
			}
			return
		}
		_, body, rest, err := wire.ParseSegment(payload)
		if err != nil {
			t.Fatalf("accepted, but %v", err)
		}
		for i, row := range []int{0, 1, 3} {
			for j := range 2 {
				if got, want := math.Float32bits(segs[0].Values[2*row+j]),
					binary.LittleEndian.Uint32(body.Values[4*(2*i+j):]); got != want {
					t.Errorf("row %d reads %08x, want %08x", row, got, want)
				}
			}
			if presence && segs[0].Present[row] != (body.Presence[0]>>i&1 != 0) {
				t.Errorf("presence of row %d", row)
			}
		}
		if segs[0].Values[4] != 0 || segs[0].Values[5] != 0 {
			t.Error("a row of another shard was written")
		}
		if _, _, after, err := wire.ParseSegment(rest); err != nil || len(after) != 0 {
			t.Errorf("accepted with %d bytes behind it, %v", len(after), err)
		}
	})
}
