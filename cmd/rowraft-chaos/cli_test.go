package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft/e2e/chaos"
	"github.com/rowraft/rowraft/e2e/check"
	"github.com/rowraft/rowraft/e2e/cluster"
	"github.com/rowraft/rowraft/e2e/history"
	"github.com/rowraft/rowraft/e2e/load"
	"github.com/rowraft/rowraft/e2e/nemesis"
	"github.com/rowraft/rowraft/e2e/verdict"
	"github.com/rowraft/rowraft/internal/cli"
)

func command(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var o, e bytes.Buffer
	code = cli.Run(t.Context(), newRoot(), args, &o, &e)
	return code, o.String(), e.String()
}

func TestUsageErrors(t *testing.T) {
	full := t.TempDir()
	if err := cli.WriteJSON(filepath.Join(full, "x"), 1); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"run", "--tier", "A", "--log-backend", "bolt"}, "bolt maps its file"},
		{[]string{"run", "--tier", "C"}, `--tier "C"`},
		{[]string{"run", "--for", "1s"}, "--for 1s"},
		{[]string{"run", "--clients", "0"}, "--clients 0"},
		{[]string{"run", "--rows", "1", "--shards", "2"}, "--rows 1"},
		{[]string{"run", "--faults", "kill-al"}, `fault "kill-al"`},
		{[]string{"run", "--ledger", "/nowhere/ledger.md"}, "--ledger"},
		{[]string{"run", "--no-such-flag"}, "lists the flags"},
		{[]string{"run", "--binary", "/bin/sh", "--dir", full}, "is not empty"},
		{[]string{"run", "--binary", "/nowhere/rowraft", "--dir", filepath.Join(t.TempDir(), "d")}, "no rowraft binary"},
		{[]string{"check", t.TempDir()}, "the directory is not that of a run"},
	} {
		code, _, stderr := command(t, tc.args...)
		if code != cli.ExitUsage || !strings.Contains(stderr, tc.want) {
			t.Errorf("%v: exit code %d, %q; want %d and %q", tc.args, code, stderr, cli.ExitUsage, tc.want)
		}
	}
}

func TestFaultsAreListed(t *testing.T) {
	code, stdout, _ := command(t, "faults")
	if code != cli.ExitDone || strings.Count(stdout, "\n") != len(nemesis.Kinds()) ||
		!strings.Contains(stdout, "kill-leader") {
		t.Errorf("exit code %d:\n%s", code, stdout)
	}
}

// record writes the directory of a run with one client: its acknowledged pushes, and the result and index
// of a final read.
func record(t *testing.T, pushes int, read int64, index uint64, seen cluster.Sights) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := cli.WriteJSON(filepath.Join(dir, chaos.ConfigFile),
		chaos.Config{Clients: 1, Seed: 5, For: time.Minute}); err != nil {
		t.Fatal(err)
	}
	if err := cli.WriteJSON(filepath.Join(dir, verdict.SeenFile), seen); err != nil {
		t.Fatal(err)
	}
	rec, err := history.Create(filepath.Join(dir, verdict.HistoryFile))
	if err != nil {
		t.Fatal(err)
	}
	now := int64(0)
	add := func(op history.Op) {
		op.Call, op.Return, op.Outcome = now+1, now+2, history.OK
		now += 3
		rec.Add(op)
	}
	add(history.Op{Kind: history.Phase, Client: -1, Fault: "safety"})
	for i := range pushes {
		add(history.Op{Kind: history.Push, Rows: []int{0}, Index: map[int]uint64{0: uint64(i + 1)}})
	}
	add(history.Op{Kind: history.Phase, Client: -1, Fault: "final"})
	values := make([]int64, 1+load.Guests)
	values[0] = read
	add(history.Op{Kind: history.Pull, Client: 4, Rows: []int{0}, Values: [][]int64{values}, Mode: "linearizable",
		Index: map[int]uint64{0: index}})
	if err := rec.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestCheckAgain: every checker runs, and its findings are in the verdict.
func TestCheckAgain(t *testing.T) {
	lead := func(replica string) check.Leading { return check.Leading{Shard: 1, Term: 4, Replica: replica} }
	digest := func(replica, sum string) check.DigestAt {
		return check.DigestAt{Shard: 1, Replica: replica, Index: 9, Digest: sum}
	}
	good := cluster.Sights{Leads: []check.Leading{lead("a")},
		Digests: []check.DigestAt{digest("a", "d"), digest("b", "d")}}
	for _, tc := range []struct {
		name  string
		read  int64
		index uint64
		seen  cluster.Sights
		code  int
		want  string
	}{
		{"all pushes found", 3, 3, good, cli.ExitDone, "leaders    ok "},
		{"one push lost", 2, 3, good, cli.ExitVerdict, "1 additions lost, 0 doubled"},
		{"one push doubled", 4, 3, good, cli.ExitVerdict, "0 additions lost, 1 doubled"},
		{"the search finds it too", 2, 3, good, cli.ExitVerdict, "porcupine  1 VIOLATIONS"},
		{"an index behind an acknowledged one", 3, 2, good, cli.ExitVerdict, "indices    1 VIOLATIONS"},
		{"two leaders of a term", 3, 3, cluster.Sights{Leads: []check.Leading{lead("a"), lead("b")}, Digests: good.Digests},
			cli.ExitVerdict, "leaders    1 VIOLATIONS"},
		{"replicas that differ", 3, 3,
			cluster.Sights{Leads: good.Leads, Digests: []check.DigestAt{digest("a", "d"), digest("b", "e")}}, cli.ExitVerdict,
			"digests    1 VIOLATIONS"},
		{"nothing to look at", 3, 3, cluster.Sights{}, cli.ExitVerdict, "no two replicas were seen"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, _ := command(t, "check", record(t, 3, tc.read, tc.index, tc.seen))
			if code != tc.code || !strings.Contains(stdout, tc.want) {
				t.Errorf("exit code %d, want %d; want %q in\n%s", code, tc.code, tc.want, stdout)
			}
		})
	}
}

func TestGrownServers(t *testing.T) {
	before := cluster.Usage{Goroutines: 100, Threads: 10, Files: 50, RSSBytes: 50 << 20, DataBytes: 10 << 20}
	if err := grown(before, before, 2); err != nil {
		t.Errorf("as before: %v", err)
	}
	for what, change := range map[string]func(*cluster.Usage){
		"goroutines": func(u *cluster.Usage) { u.Goroutines += moreGoroutines + 2*moreGoroutinesPerShard + 1 },
		"threads":    func(u *cluster.Usage) { u.Threads += moreThreads + 1 },
		"files":      func(u *cluster.Usage) { u.Files += moreFiles + 2*moreFilesPerShard + 1 },
		"memory":     func(u *cluster.Usage) { u.RSSBytes += moreRSSBytes + 1 },
		"directory":  func(u *cluster.Usage) { u.DataBytes += moreDataBytes + 1 },
	} {
		after := before
		change(&after)
		if err := grown(before, after, 2); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("too many %s: %v", what, err)
		}
	}
}

func TestLeadersAreReadFromLogs(t *testing.T) {
	log := `{"level":"INFO","msg":"leads the shard","shard":1,"replica":"a","term":7,"index":3}
{"level":"INFO","msg":"stopped leading","shard":1,"replica":"a","term":7}
not JSON: leads the shard
`
	got := leadsIn([]byte(log))
	if len(got) != 1 || got[0].Shard != 1 || got[0].Term != 7 || got[0].Replica != "a" {
		t.Fatalf("leadsIn = %+v", got)
	}
	other := leadsIn([]byte(strings.ReplaceAll(log, `"a"`, `"b"`)))
	if v := check.Leaders(append(got, other...)); len(v) != 1 {
		t.Errorf("two replicas led shard 1 in term 7: reported %v", v)
	}
}
