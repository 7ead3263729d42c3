package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft/e2e/check"
	"github.com/rowraft/rowraft/e2e/history"
	"github.com/rowraft/rowraft/e2e/load"
	"github.com/rowraft/rowraft/e2e/nemesis"
)

func command(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var o, e bytes.Buffer
	code = run(t.Context(), args, &o, &e)
	return code, o.String(), e.String()
}

func TestUsageErrors(t *testing.T) {
	full := t.TempDir()
	if err := writeJSON(filepath.Join(full, "x"), 1); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"run", "--tier", "C"}, `--tier "C"`},
		{[]string{"run", "--for", "1s"}, "--for 1s"},
		{[]string{"run", "--clients", "0"}, "--clients 0"},
		{[]string{"run", "--rows", "1", "--shards", "2"}, "--rows 1"},
		{[]string{"run", "--faults", "kill-al"}, `fault "kill-al"`},
		{[]string{"run", "--no-such-flag"}, "lists the flags"},
		{[]string{"run", "--binary", "/bin/sh", "--dir", full}, "is not empty"},
		{[]string{"run", "--binary", "/nowhere/rowraft", "--dir", filepath.Join(t.TempDir(), "d")}, "no rowraft binary"},
		{[]string{"check", t.TempDir()}, "not the directory of a run"},
	} {
		code, _, stderr := command(t, tc.args...)
		if code != exitUsage || !strings.Contains(stderr, tc.want) {
			t.Errorf("%v: exit code %d, %q; want %d and %q", tc.args, code, stderr, exitUsage, tc.want)
		}
	}
}

func TestFaultsAreListed(t *testing.T) {
	code, stdout, _ := command(t, "faults")
	if code != exitDone || strings.Count(stdout, "\n") != len(nemesis.Kinds()) || !strings.Contains(stdout, "kill-leader") {
		t.Errorf("exit code %d:\n%s", code, stdout)
	}
}

// record writes the directory of a run with one client: pushes acknowledged, and
// what a final read shows.
func record(t *testing.T, pushes int, read int64) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := writeJSON(filepath.Join(dir, configFile), config{Clients: 1, Seed: 5, For: time.Minute}); err != nil {
		t.Fatal(err)
	}
	rec, err := history.Create(filepath.Join(dir, historyFile))
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
	for range pushes {
		add(history.Op{Kind: history.Push, Rows: []int{0}})
	}
	add(history.Op{Kind: history.Phase, Client: -1, Fault: "final"})
	values := make([]int64, 1+load.Guests)
	values[0] = read
	add(history.Op{Kind: history.Pull, Client: 4, Rows: []int{0}, Values: [][]int64{values}, Mode: "linearizable"})
	if err := rec.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestCheckAgain(t *testing.T) {
	for _, tc := range []struct {
		name string
		read int64
		code int
		want string
	}{
		{"all pushes found", 3, exitDone, "0 violations"},
		{"one push lost", 2, exitVerdict, "1 additions lost, 0 doubled"},
		{"one push doubled", 4, exitVerdict, "0 additions lost, 1 doubled"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, _ := command(t, "check", record(t, 3, tc.read))
			if code != tc.code || !strings.Contains(stdout, tc.want) {
				t.Errorf("exit code %d, want %d; want %q in\n%s", code, tc.code, tc.want, stdout)
			}
		})
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
