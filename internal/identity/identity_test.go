package identity

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/internal/vfs"
)

func open(t *testing.T, dir string) *Dir {
	t.Helper()
	d, err := Open(vfs.OS, dir)
	if err != nil {
		t.Fatalf("Open(%s): %v", dir, err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func TestIdentityIsBornOnceAndKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	d := open(t, dir)
	born := d.Identity()
	if born.Node == "" || born.MetaReplica != MetaReplicaOf(born.Node) || born.Cluster != "" || born.Founder() {
		t.Fatalf("a new directory is %+v", born)
	}
	members := []Member{{Node: "zz", Addr: "a:1", PeerAddr: "a:2"}, {Node: born.Node, Name: "n1"}}
	if err := d.Join("c-1", members); err != nil {
		t.Fatal(err)
	}
	want := d.Identity()
	if !want.Founder() || want.Cluster != "c-1" || len(want.Founders) != 2 ||
		want.Founders[0].Node > want.Founders[1].Node {
		t.Fatalf("after Join: %+v", want)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, open(t, dir).Identity()); diff != "" {
		t.Errorf("reopened (-want +got):\n%s", diff)
	}
}

func TestANameSurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	for _, name := range []string{"n1", "n1", "host-7"} {
		if err := d.SetName(name); err != nil {
			t.Fatal(err)
		}
	}
	want := d.Identity()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if got := open(t, dir).Identity(); got.Name != "host-7" || !cmp.Equal(got, want) {
		t.Errorf("reopened: %+v, want %+v", got, want)
	}
}

func TestJoinRefusesAnotherCluster(t *testing.T) {
	d := open(t, t.TempDir())
	m := []Member{{Node: "a"}}
	if err := d.Join("c-1", m); err != nil {
		t.Fatal(err)
	}
	if err := d.Join("c-1", m); err != nil {
		t.Errorf("joining the same cluster twice: %v", err)
	}
	testutil.WantCode(t, d.Join("c-2", m), rowraft.CodeIdentity, "c-1", "c-2", d.Path())
	if d.Identity().Cluster != "c-1" {
		t.Errorf("the refused cluster was kept: %+v", d.Identity())
	}
}

func TestOneProcessPerDirectory(t *testing.T) {
	dir := t.TempDir()
	first := open(t, dir)
	_, err := Open(vfs.OS, dir)
	testutil.WantCode(t, err, rowraft.CodeIdentity, dir, "pid "+strconv.Itoa(os.Getpid()))
	first.Close()
	open(t, dir)
}

func TestForeignDirectoryIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "letters.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(vfs.OS, dir)
	testutil.WantCode(t, err, rowraft.CodeIdentity, "letters.txt", "no IDENTITY")
	if _, err := os.Stat(filepath.Join(dir, fileName)); err == nil {
		t.Error("an identity was written into a foreign directory")
	}
}

// TestCrashDuringChange creates the states that a crash can leave between any two steps of a change: the
// temporary file, complete or torn, with the old file or without one.
func TestCrashDuringChange(t *testing.T) {
	for _, torn := range []string{"", `{"format":`, "whole"} {
		dir := t.TempDir()
		d := open(t, dir)
		old := d.Identity()
		d.Close()
		raw := []byte(torn)
		if torn == "whole" {
			raw, _ = encode(Identity{Node: "x", Cluster: "c", Founders: []Member{{Node: "x"}}})
		}
		if err := os.WriteFile(filepath.Join(dir, tempName), raw, 0o600); err != nil {
			t.Fatal(err)
		}
		d = open(t, dir)
		if got := d.Identity(); got.Node != old.Node || got.Cluster != "" {
			t.Errorf("temporary file %q changed the identity from %+v to %+v", torn, old, got)
		}
		if err := d.Join("c-1", []Member{{Node: old.Node}}); err != nil {
			t.Errorf("the left-over blocks the next change: %v", err)
		}
		d.Close()
		if err := os.Remove(path(dir)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, tempName), raw, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := open(t, dir).Identity(); got.Node == old.Node || got.Node == "x" {
			t.Errorf("an unfinished birth gave the node id %s", got.Node)
		}
	}
}

func TestDamagedFileIsRefused(t *testing.T) {
	raw, err := os.ReadFile("testdata/identity.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, old, new string
		code           rowraft.Code
		says           string
	}{
		{"a changed node id", "node-b", "node-c", rowraft.CodeCorrupt, "checksum"},
		{"a torn file", "}\n", "", rowraft.CodeCorrupt, "IDENTITY"},
		{"another format", fileFormat, "other", rowraft.CodeCorrupt, "format"},
		{"a newer version with other fields", `"version": 1,`, `"version": 2, "novel": 1,`,
			rowraft.CodeVersionTooNew, "version 2"},
		{"an unknown field", `"version": 1,`, `"version": 1, "novel": 1,`, rowraft.CodeCorrupt, "novel"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			bad := strings.ReplaceAll(string(raw), tc.old, tc.new)
			if bad == string(raw) {
				t.Fatalf("%q is not in the file", tc.old)
			}
			if err := os.WriteFile(path(dir), []byte(bad), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Open(vfs.OS, dir)
			testutil.WantCode(t, err, tc.code, tc.says)
		})
	}
}

// TestGoldenFile reads a file that was written by hand from the format's page;
// its checksum comes from an independent CRC-32C.
func TestGoldenFile(t *testing.T) {
	raw, err := os.ReadFile("testdata/identity.json")
	if err != nil {
		t.Fatal(err)
	}
	got, err := decode(raw, "golden")
	if err != nil {
		t.Fatal(err)
	}
	want := Identity{
		Node: "node-b", MetaReplica: "replica-b", Cluster: "cluster-1",
		Founders: []Member{{Node: "node-a", Name: "n1", Addr: "10.0.0.1:7070", PeerAddr: "10.0.0.1:7071"},
			{Node: "node-b", Addr: "10.0.0.2:7070", PeerAddr: "10.0.0.2:7071"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	again, err := encode(got)
	if err != nil || string(again) != string(raw) {
		t.Errorf("encode gives\n%s(%v), want\n%s", again, err, raw)
	}
}
