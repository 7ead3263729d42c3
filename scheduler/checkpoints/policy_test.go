package checkpoints

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
	"github.com/rowraft/rowraft/scheduler/metatest/metacmd"
)

func TestWhenAPolicyIsDue(t *testing.T) {
	s, _, trainers := newSolo(t, 0, nil)
	now := time.Unix(1_000_000, 0)
	at := func(d time.Duration) uint64 { return uint64(now.Add(d).UnixNano()) }
	for _, tc := range []struct {
		name   string
		record *rowraftv1.PolicyRecord
		want   time.Duration // from now
	}{
		{"just made: after its interval", &rowraftv1.PolicyRecord{SetNs: at(0)}, 10 * time.Minute},
		{"after the last one", &rowraftv1.PolicyRecord{SetNs: at(-time.Hour), BegunNs: at(-4 * time.Minute)},
			6 * time.Minute},
		{"late", &rowraftv1.PolicyRecord{BegunNs: at(-time.Hour)}, -50 * time.Minute},
		{"one failure: soon again", &rowraftv1.PolicyRecord{BegunNs: at(0), Failures: 1}, 30 * time.Second},
		{"three failures", &rowraftv1.PolicyRecord{BegunNs: at(0), Failures: 3}, 2 * time.Minute},
		{"many failures: no more often than it should run, no less",
			&rowraftv1.PolicyRecord{BegunNs: at(0), Failures: 4_000_000_000}, 10 * time.Minute},
		{"the clock was set back", &rowraftv1.PolicyRecord{BegunNs: at(24 * time.Hour)}, 0},
		{"begun by an earlier leader: at once", &rowraftv1.PolicyRecord{BegunNs: at(0), Running: "x"}, 0},
	} {
		next, ok := s.due(&meta.Policy{Policy: metacmd.Nightly("/mnt", 1), Record: tc.record}, now)
		if got := next.Sub(now); got != tc.want || !ok {
			t.Errorf("%s: due in %v (%v), want %v", tc.name, got, ok, tc.want)
		}
	}
	p := &meta.Policy{Policy: metacmd.Nightly("/mnt", 1), Record: &rowraftv1.PolicyRecord{SetNs: at(0)}}
	p.Policy.Job = "ctr"
	if _, ok := s.due(p, now); ok {
		t.Error("due, though its job does not train")
	}
	trainers.callers["ctr"] = []*rpc.Caller{nil}
	if _, ok := s.due(p, now); !ok {
		t.Error("not due, though its job trains")
	}
}

func TestWhatADeltaStandsOn(t *testing.T) {
	for _, tc := range []struct {
		fullEvery uint32
		made      string // f: full, d: delta
		want      bool
	}{{0, "f", false}, {1, "f", false}, {3, "", false}, {3, "f", true}, {3, "fd", true}, {3, "fdd", false},
		{3, "fddf", true}, {2, "fd", false}} {
		p := &meta.Policy{Policy: &rowraftv1.CheckpointPolicy{FullEvery: tc.fullEvery}, Record: &rowraftv1.PolicyRecord{}}
		for i, k := range tc.made {
			p.Record.Made = append(p.Record.Made, &rowraftv1.PolicyCheckpoint{Name: fmt.Sprint(i), Delta: k == 'd'})
		}
		want := ""
		if tc.want {
			want = fmt.Sprint(len(tc.made) - 1)
		}
		if got := deltaTo(p); got != want {
			t.Errorf("a full one every %d, made %q: on %q, want %q", tc.fullEvery, tc.made, got, want)
		}
	}
}

// putCheckpoint writes an empty checkpoint that is whole.
func putCheckpoint(t *testing.T, d depot.Depot, name string) { putDelta(t, d, name, nil) }

// putDelta is putCheckpoint, of a delta unless parent is nil. It returns what a delta
// to it names.
func putDelta(t *testing.T, d depot.Depot, name string, parent *checkpoint.Parent) *checkpoint.Parent {
	t.Helper()
	m := &checkpoint.Manifest{
		Parent: parent,
		ID:     uuid.NewString(), Created: time.Now().UTC(), Cluster: "c", Binary: "b", Epoch: 1, Map: 1,
		HashVers: clustermap.HashVersion, Slots: rowraft.DefaultSlots,
		Shards: []checkpoint.ShardFile{{Applied: 1}},
	}
	for slot := range rowraft.DefaultSlots {
		m.Shards[0].Slots = append(m.Shards[0].Slots, rowraft.Slot(slot))
	}
	for kind, f := range map[string]*checkpoint.File{"rows": &m.Shards[0].Stream, "sums": &m.Shards[0].Sums} {
		*f = checkpoint.File{Name: fmt.Sprintf("shard-0000-%s0badcafe.%s", m.ID[:8], kind), Bytes: 1,
			SHA256: sha256.Sum256([]byte("x"))}
		if err := d.Put(t.Context(), name+"/"+f.Name, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Put(t.Context(), name+"/"+checkpoint.ManifestFile, raw); err != nil {
		t.Fatal(err)
	}
	return &checkpoint.Parent{Name: name, ID: m.ID}
}

func lying(t *testing.T, d depot.Depot) (names []string) {
	t.Helper()
	found, err := depot.Scan(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		names = append(names, f.Name)
	}
	slices.Sort(names)
	return names
}

// Retention removes what the policy made, the oldest, and nothing that it needs.
func TestRetention(t *testing.T) {
	for _, tc := range []struct {
		name              string
		keep              uint32
		within            time.Duration
		age               time.Duration // between two
		deltas            int           // so many of the last are deltas, each to the one before
		verify            bool
		restored, resumed string // names
		spoil             func(dir string)
		want              string // what lies there afterwards, of a … e and the foreign x
		made              string
	}{
		{name: "the oldest go", keep: 2, want: "d e x", made: "d e"},
		{name: "younger ones stay, too", keep: 1, age: time.Hour, within: 150 * time.Minute, want: "c d e x", made: "c d e"},
		{name: "all are to be kept", keep: 9, want: "a b c d e x", made: "a b c d e"},
		{name: "one that an operator removed is forgotten", keep: 2, spoil: func(dir string) { _ = os.RemoveAll(dir + "/e") },
			want: "c d x", made: "c d"},
		{name: "one without a manifest does not count", keep: 2,
			spoil: func(dir string) { _ = os.Remove(dir + "/d/MANIFEST") }, want: "c d e x", made: "c e"},
		{name: "a damaged one does not count, and stays", keep: 2,
			spoil: func(dir string) { _ = os.WriteFile(dir+"/d/MANIFEST", []byte("?"), 0o600) }, want: "c d e x", made: "c d e"},
		{name: "the newest is damaged: nothing goes", keep: 1,
			spoil: func(dir string) { _ = os.WriteFile(dir+"/e/MANIFEST", []byte("?"), 0o600) }, want: "a b c d e x",
			made: "a b c d e"},
		{name: "a full one stays as long as deltas to it", keep: 2, deltas: 3, want: "b c d e x", made: "b c d e"},
		{name: "the newest is damaged, as are deltas to nothing", keep: 2, deltas: 3,
			spoil: func(dir string) { _ = os.RemoveAll(dir + "/b") }, want: "a c d e x", made: "a b c d e"},
		{name: "damaged: files are missing in two", keep: 2,
			spoil: func(dir string) { lose(dir+"/d", "rows"); lose(dir+"/c", "sums") }, want: "b c d e x", made: "b c d e"},
		{name: "damaged: a file was cut short", keep: 2, spoil: func(dir string) { cutShort(dir + "/d") }, want: "c d e x",
			made: "c d e"},
		{name: "damaged: all but the oldest", keep: 1, spoil: func(dir string) {
			for _, n := range []string{"b", "c", "d", "e"} {
				cutShort(dir + "/" + n)
			}
		}, want: "a b c d e x", made: "a b c d e"},
		{name: "damaged: what the newest stand on", keep: 1, deltas: 3, spoil: func(dir string) { cutShort(dir + "/b") },
			want: "a b c d e x", made: "a b c d e"},
		{name: "damaged, as a verification has found", keep: 2,
			spoil: func(dir string) { _ = os.WriteFile(dir+"/d/DAMAGED", []byte("a bit is not right\n"), 0o600) },
			want:  "c d e x", made: "c d e"},
		{name: "damaged, as the policy's own verification finds", keep: 1, verify: true, spoil: func(dir string) {},
			want: "a b c d e x", made: "a b c d e"},
		{name: "the directory is a disk, with lost+found", keep: 2,
			spoil: func(dir string) { _ = os.Mkdir(dir+"/lost+found", 0) }, want: "d e x", made: "d e"},
		{name: "tables come from an old one", keep: 2, restored: "b", want: "b d e x", made: "b d e"},
		{name: "a run began with an old one", keep: 2, resumed: "a", want: "a d e x", made: "a d e"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, _, _ := newSolo(t, 1, nil)
			dir := t.TempDir()
			d, err := depot.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			spec := metacmd.Nightly(dir, tc.keep)
			spec.Verify = tc.verify
			spec.KeepWithinNs = uint64(tc.within)
			must := func(c *rowraftv1.MetaCommand) {
				t.Helper()
				if err := s.lead.Propose(t.Context(), c); err != nil {
					t.Fatal(err)
				}
			}
			must(metacmd.SetPolicy(spec, 1))
			names := []string{"a", "b", "c", "d", "e"}
			var last *checkpoint.Parent
			for i, name := range names {
				if i < len(names)-tc.deltas {
					last = nil
				}
				last = putDelta(t, d, name, last)
				if name == tc.restored {
					r := metacmd.Restore(1, 2, 1)
					r.Source = &rowraftv1.MetaRestored{Id: last.ID, Destination: dir, Name: name}
					for _, c := range []*rowraftv1.MetaCommand{metacmd.BeginRestore(1), metacmd.DecideRestore(r),
						metacmd.EndRestore(1, true)} {
						must(c)
					}
				}
				if name == tc.resumed {
					must(metacmd.EnterJob("w0", 1, func(q *rowraftv1.EnterRequest) { q.Checkpoint = last.ID }))
				}
				at := time.Now().Add(-tc.age * time.Duration(len(names)-1-i))
				must(metacmd.BeginPolicyRun("nightly", name, uint64(at.UnixNano())))
				must(metacmd.EndPolicyRun("nightly", name, "", false))
			}
			putCheckpoint(t, d, "x")
			if tc.spoil != nil {
				tc.spoil(dir)
			}
			for range 2 { // the second time nothing is left to do
				if err := s.retain(t.Context(), "nightly"); err != nil {
					t.Fatal(err)
				}
				if got := strings.Join(lying(t, d), " "); got != tc.want {
					t.Errorf("%s lie there, want %s", got, tc.want)
				}
				if got := strings.Join(madeNames(s.machine.PolicyOf("nightly")), " "); got != tc.made {
					t.Errorf("the policy knows of %s, want %s", got, tc.made)
				}
			}
			damaged := strings.Contains(tc.name, "damaged")
			if why := s.machine.PolicyOf("nightly").GetRecord().GetRetentionError(); (why != "") != damaged {
				t.Errorf("the retention reports %q", why)
			}
		})
	}
}

// lose removes the files of a kind from a checkpoint.
func lose(dir, kind string) {
	files, _ := filepath.Glob(dir + "/*." + kind)
	for _, f := range files {
		_ = os.Remove(f)
	}
}

// cutShort leaves the files of rows empty.
func cutShort(dir string) {
	files, _ := filepath.Glob(dir + "/*.rows")
	for _, f := range files {
		_ = os.Truncate(f, 0)
	}
}

// The next leader ends a run that an earlier leader began, by what it finds in the destination.
func TestARunThatTheNextLeaderEnds(t *testing.T) {
	for _, tc := range []struct {
		name  string
		there func(t *testing.T, d depot.Depot)
		want  bool
	}{
		{"it was made", func(t *testing.T, d depot.Depot) { putCheckpoint(t, d, "a") }, true},
		{"half of it was made", func(t *testing.T, d depot.Depot) {
			if err := d.Put(t.Context(), "a/shard-0000-0badcafe0badcafe.rows", []byte("x")); err != nil {
				t.Fatal(err)
			}
		}, false},
		{"nothing was made", func(*testing.T, depot.Depot) {}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, _, _ := newSolo(t, 0, nil)
			d, err := depot.Open(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range []*rowraftv1.MetaCommand{metacmd.SetPolicy(metacmd.Nightly(d.String(), 2), 1),
				metacmd.BeginPolicyRun("nightly", "a", 2)} {
				if err := s.lead.Propose(t.Context(), c); err != nil {
					t.Fatal(err)
				}
			}
			tc.there(t, d)
			if err := s.runPolicy(t.Context(), "nightly"); err != nil {
				t.Fatal(err)
			}
			p := s.machine.PolicyOf("nightly")
			if made := len(p.GetRecord().GetMade()) == 1; made != tc.want || p.GetRecord().GetRunning() != "" ||
				(p.GetRecord().GetFailures() > 0) == tc.want {
				t.Errorf("%v", p.GetRecord())
			}
			if left := lying(t, d); (len(left) > 0) != tc.want {
				t.Errorf("%v lie there", left)
			}
		})
	}
}

// A call of RunPolicy makes a checkpoint, or fails. To end the run of an earlier leader is not enough.
func TestRunNowIsNotTheEndOfAForeignRun(t *testing.T) {
	s, _, _ := newSolo(t, 0, nil)
	for _, c := range []*rowraftv1.MetaCommand{metacmd.SetPolicy(metacmd.Nightly(t.TempDir(), 2), 1),
		metacmd.BeginPolicyRun("nightly", "a", 2)} {
		if err := s.lead.Propose(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	err := s.runPolicyNow(t.Context(), "nightly") // there are no shards to make one of
	if r := s.machine.PolicyOf("nightly").GetRecord(); err == nil || r.GetRunning() != "" || r.GetFailures() != 2 ||
		r.GetBegunNs() <= 2 {
		t.Errorf("%v; %v; want the failures of both", err, r)
	}
}

// A call of RunPolicy waits for the running policy with the same destination, until its context ends.
func TestRunNowWaitsForTheRunUnderWay(t *testing.T) {
	s, _, _ := newSolo(t, 0, nil)
	for name, dest := range map[string]string{"p": "/a", "other": "/b"} {
		spec := metacmd.Nightly(dest, 2)
		spec.Name = name
		if err := s.lead.Propose(t.Context(), metacmd.SetPolicy(spec, 1)); err != nil {
			t.Fatal(err)
		}
	}
	runs := runOfPolicy(s.machine.PolicyOf("p"))
	s.policyRuns.try(runs, opens)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.runPolicyNow(ctx, "p"); rowraft.CodeOf(err) != rowraft.CodeOverloaded {
		t.Errorf("while another runs: %v, want CodeOverloaded", err)
	}
	if err := s.runPolicyNow(t.Context(), "other"); rowraft.CodeOf(err) != rowraft.CodeStarting {
		t.Errorf("to another destination: %v, want the answer of the run itself, CodeStarting", err)
	}
	answer := make(chan error, 1)
	go func() { answer <- s.runPolicyNow(context.Background(), "p") }()
	s.policyRuns.leave(runs)
	if err := <-answer; rowraft.CodeOf(err) != rowraft.CodeStarting {
		t.Errorf("once it has ended: %v, want the answer of the run itself, CodeStarting", err)
	}
}

func madeNames(p *meta.Policy) (names []string) {
	for _, m := range p.GetRecord().GetMade() {
		names = append(names, m.GetName())
	}
	return names
}
