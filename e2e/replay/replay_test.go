package replay

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/e2e/check"
	"github.com/rowraft/rowraft/e2e/history"
	"github.com/rowraft/rowraft/raftstore/raftlog"
)

func TestAGoodRun(t *testing.T) {
	for _, backend := range raftlog.Backends {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			r := start(t, backend, nil)
			r.fill()
			got, err := Check(r.options())
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range got.Problems {
				t.Error(p)
			}
			// On a busy machine a replica may be behind and get a snapshot. In that case the logs do not
			// reach back to every digest.
			if got.Replicas != 3 || got.Entries < 20 || got.Snapshots < 3 || got.Digests < len(r.digests)/2 || got.Rows != 2 ||
				got.Sessions != 2 {
				t.Errorf("looked at %+v, want at least half of %d digests", got, len(r.digests))
			}
		})
	}
}

// nothing returns an entry without parts.
func nothing() []byte { return partsEntry() }

// TestServersThatLie: machines that do not apply what the log contains.
func TestServersThatLie(t *testing.T) {
	for _, tc := range []struct {
		name  string
		on    []int // servers
		spoil spoiler
		want  string
	}{
		{"one replica leaves out a push", []int{1}, func(_ rowraft.Index, e []byte) []byte {
			if isPush(e, 1, 18) {
				return nothing()
			}
			return e
		}, "n1"},
		{"all replicas round a gradient otherwise", []int{0, 1, 2}, func(_ rowraft.Index, e []byte) []byte {
			if isPush(e, 1, 18) {
				e = bytes.Clone(e)
				e[len(e)-3] ^= 1 // bit 8 of one of sixteen numbers
			}
			return e
		}, "the log gives"},
		{"one replica forgets that a number is spent", []int{2}, func(_ rowraft.Index, e []byte) []byte {
			if len(e) == len(spent(1, 0)) {
				return nothing()
			}
			return e
		}, "of server n2: it holds another state than the log gives: client 02"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := start(t, raftlog.Row, func(server int) spoiler {
				if slices.Contains(tc.on, server) {
					return tc.spoil
				}
				return nil
			})
			r.fill()
			wantProblem(t, r.options(), tc.want)
		})
	}
}

// TestWhatDoesNotFit: correct servers, and other data that does not agree with them.
func TestWhatDoesNotFit(t *testing.T) {
	r, other := start(t, raftlog.Bolt, nil), start(t, raftlog.Bolt, nil)
	other.push(1)              // into a shard that knows neither table nor session
	r.fillBeyond(other.fill()) // a snapshot beyond all logs is a different fault
	last := r.digests[len(r.digests)-1]
	for _, tc := range []struct {
		name  string
		spoil func(o *Options)
		want  string
	}{
		{"a digest that no state has", func(o *Options) {
			o.Digests = append(o.Digests, check.DigestAt{Replica: "n7", Index: last.Index, Digest: r.digests[0].Digest})
		}, "replica n7 reported"},
		{"an acknowledged entry that is in no log", func(o *Options) {
			o.Ops = append(o.Ops, history.Op{Kind: history.Pull, Index: map[int]uint64{0: last.Index + 20}})
		}, "0 of 3 replicas hold"},
		{"an acknowledged entry on one disk", func(o *Options) { o.Servers = o.Servers[:1] }, "1 of 3 replicas hold"},
		{"an acknowledged push that is not in the logs", func(o *Options) {
			o.Ops = append(o.Ops, history.Op{Kind: history.Push, Client: 1, Rows: []int{0}, Outcome: history.OK})
		}, "row 0, client 1"},
		{"a push in the logs that no client made", func(o *Options) { o.Ops = o.Ops[1:] }, "row 0, client 0"},
		{"a replica with another log", func(o *Options) {
			o.Servers[2].Dir = filepath.Join(other.dir, "n2")
		}, "differs"},
		{"a snapshot of another run", func(o *Options) {
			o.Servers[2].Dir = withSnapshotsOf(t, o.Servers[2].Dir, filepath.Join(other.dir, "n2"))
		}, "snapshot 0000"}, // detected by its state, or by later state
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := r.options()
			tc.spoil(&o)
			wantProblem(t, o, tc.want)
		})
	}
}

func wantProblem(t *testing.T, o Options, want string) {
	t.Helper()
	got, err := Check(o)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(got.Problems, func(p string) bool { return strings.Contains(p, want) }) {
		t.Errorf("problems %q, want one with %q", got.Problems, want)
	}
}

// withSnapshotsOf copies a data directory with the snapshots of another one.
func withSnapshotsOf(t *testing.T, dir, other string) string {
	out := t.TempDir()
	if err := os.CopyFS(out, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	snapshots := filepath.Join("raft", "groups", "shard-0", "snapshots")
	if err := os.RemoveAll(filepath.Join(out, snapshots)); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(out, snapshots), os.DirFS(filepath.Join(other, snapshots))); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestARunningServerIsLeftAlone(t *testing.T) {
	r := start(t, raftlog.Row, nil)
	r.push(0)
	if _, err := Check(r.options()); rowraft.CodeOf(err) != rowraft.CodeIdentity {
		t.Errorf("Check while the servers run: %v", err)
	}
}
