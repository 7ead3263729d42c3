package registry

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/allocs"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/frame"
	"github.com/rowraft/rowraft/raftstore/raftlog"
)

func FuzzRegistry(f *testing.F) {
	good := Content{Cluster: "c1", Node: "n1", Groups: map[string]Record{
		"meta":    {Replica: "r1", Backend: raftlog.Bolt, State: Active, Founded: true},
		"shard-3": {Replica: "r2", Backend: raftlog.Row, State: Removed},
		"shard-4": {Replica: "r3", Backend: raftlog.Row, State: Creating},
	}}
	body, err := json.MarshalIndent(&good, "", " ")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(body)
	f.Add(frame.Seal(magic, version, body))
	f.Add(frame.Seal(magic, version+1, body))
	f.Add([]byte(`{"cluster":"c1","node":"n1","groups":null}`))
	f.Add([]byte(`{"cluster":"c1","node":"n2"}`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		if !bytes.HasPrefix(b, []byte(magic)) { // a body: put it into a frame
			b = frame.Seal(magic, version, b)
		}
		if err := os.WriteFile(filepath.Join(dir, "registry"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		allocs.Frugal(t, b, func() {
			r, err := openTest(dir)
			if _, offline := Read(vfs.OS, dir); (offline == nil) != (err == nil || rowraft.CodeOf(err) == rowraft.CodeIdentity) {
				t.Errorf("a running server reads it with %v, an offline tool with %v", err, offline)
			}
			if err != nil {
				switch rowraft.CodeOf(err) {
				case rowraft.CodeCorrupt, rowraft.CodeVersionTooNew, rowraft.CodeIdentity:
				default:
					t.Errorf("%v has code %v", err, rowraft.CodeOf(err))
				}
				return
			}
			if err := r.write(); err != nil {
				t.Fatal(err)
			}
			again, err := openTest(dir)
			if err != nil || !reflect.DeepEqual(again.content, r.content) {
				t.Errorf("%+v is written and read as %+v, %v", r.content, again, err)
			}
		})
	})
}

func openTest(dir string) (*Registry, error) { return Open(vfs.OS, dir, "c1", "n1") }
