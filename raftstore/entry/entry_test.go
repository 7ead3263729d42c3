package entry

import (
	"bytes"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
)

// FuzzSeal: an entry that passes is the one that was sealed.
func FuzzSeal(f *testing.F) {
	f.Add(uint64(1), uint64(2), byte(raft.LogCommand), []byte("data"), []byte{})
	f.Add(uint64(1), uint64(2), byte(raft.LogNoop), []byte{}, []byte{1, 2, 3, 4, 5, 6, 7, 8})
	f.Add(uint64(1), uint64(2), byte(raft.LogConfiguration), []byte{5}, []byte{1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, index, term uint64, kind byte, data, seal []byte) {
		l := raft.Log{Index: index, Term: term, Type: raft.LogType(kind), Data: data, Extensions: Seal(data)}
		if err := Complete(&l); err != nil || Check(&l) != nil {
			t.Fatalf("the seal of %+v is not accepted: %v", l, err)
		}
		for name, change := range map[string]func(*raft.Log){
			"index": func(l *raft.Log) { l.Index++ },
			"term":  func(l *raft.Log) { l.Term ^= 1 << 63 },
			"type":  func(l *raft.Log) { l.Type ^= 1 },
			"data":  func(l *raft.Log) { l.Data = append(bytes.Clone(data), 0) },
		} {
			other := l
			if change(&other); rowraft.CodeOf(Check(&other)) != rowraft.CodeCorrupt {
				t.Errorf("another %s passes", name)
			}
		}
		foreign := raft.Log{Index: index, Term: term, Type: raft.LogType(kind), Data: data, Extensions: seal}
		if Check(&foreign) == nil && !bytes.Equal(seal, l.Extensions) {
			t.Errorf("%x passes as the seal, which is %x", seal, l.Extensions)
		}
	})
}
