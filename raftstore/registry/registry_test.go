package registry

import (
	"testing"

	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/marks"
)

func TestRegistryCountsStarts(t *testing.T) {
	disk := vfs.NewMem()
	var seen []marks.Process
	for i := range keptStarts + 3 {
		r, err := Open(disk, "/", "c1", "n1")
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Begin(); err != nil {
			t.Fatal(err)
		}
		p := r.Starts().Process()
		if want := uint64(i + 1); p.Start != want {
			t.Fatalf("start %d, want %d", p.Start, want)
		}
		for _, earlier := range seen {
			if why := r.Starts().Contradicts(earlier); why != "" {
				t.Fatalf("start %d: an honest peer that saw start %d: %s", p.Start, earlier.Start, why)
			}
		}
		if why := r.Starts().Contradicts(marks.Process{}); why != "" {
			t.Errorf("a peer that saw none: %s", why)
		}
		if r.Starts().Contradicts(marks.Process{Start: p.Start, Nonce: p.Nonce + 1}) == "" ||
			r.Starts().Contradicts(marks.Process{Start: p.Start + 1, Nonce: 5}) == "" {
			t.Errorf("start %d: a peer that saw another process is not contradicted", p.Start)
		}
		if i > 0 && r.Starts().Contradicts(marks.Process{Start: p.Start - 1, Nonce: seen[i-1].Nonce + 1}) == "" {
			t.Errorf("start %d: a peer that saw another start %d is not contradicted", p.Start, p.Start-1)
		}
		seen = append(seen, p)
	}
	r, err := Open(disk, "/", "c1", "n1")
	if err != nil {
		t.Fatal(err)
	}
	r.content.Groups = map[string]Record{"a": {Replica: "r", State: Active}, "b": {Replica: "s", State: Removed}}
	other := marks.Process{Start: 100, Nonce: 1}
	if err := r.BeginAfter(other, "a copy"); err != nil {
		t.Fatal(err)
	}
	if r, err = Open(disk, "/", "c1", "n1"); err != nil {
		t.Fatal(err)
	}
	if why := r.Starts().Contradicts(other); why != "" || r.Starts().Process().Start != 101 {
		t.Errorf("after BeginAfter start 100: start %d, %q", r.Starts().Process().Start, why)
	}
	if g := r.content.Groups; g["a"].RolledBack == "" || g["b"].RolledBack != "" {
		t.Errorf("groups %+v: want all given up that were not removed", g)
	}
}
