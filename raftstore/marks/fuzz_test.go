package marks

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/allocs"
	"github.com/rowraft/rowraft/raftstore/frame"
)

func FuzzMarks(f *testing.F) {
	good, _ := hex.DecodeString(goldenMarks)
	f.Add(good)
	f.Add(good[frame.HeadBytes : len(good)-4])
	f.Fuzz(func(t *testing.T, b []byte) {
		if !bytes.HasPrefix(b, []byte(magic)) { // a body: put it into a frame
			b = frame.Seal(magic, version, b)
		}
		allocs.Frugal(t, b, func() {
			m, err := decode(b)
			if err != nil {
				if c := rowraft.CodeOf(err); c != rowraft.CodeCorrupt && c != rowraft.CodeVersionTooNew {
					t.Errorf("%v has code %v", err, c)
				}
				return
			}
			if again, err := decode(m.encode()); err != nil || !reflect.DeepEqual(again, m) {
				t.Errorf("%+v is written and read as %+v, %v", m, again, err)
			}
		})
	})
}

func FuzzMembers(f *testing.F) {
	good, _ := hex.DecodeString(goldenMembers)
	f.Add(good[4:])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		b = SealMembers(b)
		allocs.Frugal(t, b, func() {
			list, err := DecodeMembers(b)
			var again []byte
			for _, one := range list {
				again = AppendMember(again, one)
			}
			if err == nil && !bytes.Equal(SealMembers(again), b) {
				t.Errorf("%x was read as %+v, which is written as %x", b, list, SealMembers(again))
			}
		})
	})
}
