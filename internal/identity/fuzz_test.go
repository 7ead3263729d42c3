package identity

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/allocs"
)

// FuzzDecode: encoding and decoding a decoded identity gives the same; a refused input is Corrupt or too
// new. With fix, the checksum is corrected first.
func FuzzDecode(f *testing.F) {
	for _, id := range []Identity{
		{Node: "n1"},
		{Node: "n1", MetaReplica: "r1", Cluster: "c1", Founders: []Member{{Node: "n1"}, {Node: "n2"}}},
	} {
		raw, err := encode(id)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw, false)
		f.Add(bytes.Replace(raw, []byte(`"n1"`), []byte(`"n3"`), 1), true)
		f.Add(bytes.Replace(raw, []byte(`"version": 1`), []byte(`"version": 2`), 1), true)
		f.Add(bytes.Replace(raw, []byte(`"version": 1`), []byte(`"version": -1`), 1), true)
		f.Add(raw[:len(raw)/2], false)
		f.Add(append(raw, raw...), false)
	}
	f.Fuzz(func(t *testing.T, raw []byte, fix bool) {
		if fix {
			var b fileBody
			if json.Unmarshal(raw, &b) != nil {
				return
			}
			var err error
			if b.Checksum, err = b.sum(); err != nil {
				t.Fatal(err)
			}
			if raw, err = json.Marshal(b); err != nil {
				t.Fatal(err)
			}
		}
		var id Identity
		var err error
		if n := allocs.Bytes(func() { id, err = decode(raw, "file") }); n > 1<<20+64*uint64(len(raw)) {
			t.Errorf("%d bytes made it allocate %d", len(raw), n)
		}
		if err != nil {
			if c := rowraft.CodeOf(err); c != rowraft.CodeCorrupt && c != rowraft.CodeVersionTooNew {
				t.Errorf("%v has code %v", err, c)
			}
			return
		}
		out, err := encode(id)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := decode(out, "file"); err != nil || !reflect.DeepEqual(again, id) {
			t.Errorf("%+v is written and read as %+v, %v", id, again, err)
		}
	})
}
