package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft/e2e/chaos"
	"github.com/rowraft/rowraft/e2e/nemesis"
)

func TestLedgerLine(t *testing.T) {
	r := result{
		Config:  chaos.Config{Tier: "B", Seed: 7, Backend: "rowlog", Servers: 3, Shards: 2, Clients: 24, Version: "abc"},
		Seconds: 90,
		Result: chaos.Result{
			Faults:   map[string]nemesis.Count{"a": {Tried: 3, Observed: 2}, "b": {Tried: 1}},
			Observed: 1002, Acks: 1234567, Pulls: 999, Terms: 4, Doubled: 5, Problems: []string{"x"},
		},
	}
	got := r.ledgerLine(time.Date(2026, 11, 21, 23, 0, 0, 0, time.UTC), "3.1")
	for _, want := range []string{
		"| 2026-11-21 | abc | B, 7, rowlog, 3 servers, 2 shards, 24 clients | ",
		" cores, load 3.1 | 1.5 | 1,002 (1) | 1,234,567 | 999 | 4 | 0 | 5 | 0 | 1 |\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
	page, err := os.ReadFile("../../docs/reliability-ledger.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "| date ") && strings.Count(line, "|") != strings.Count(got, "|") {
			t.Errorf("a line of %d columns for the table\n%s", strings.Count(got, "|")-1, line)
		}
	}
	r.Virtual = 600
	if got := r.ledgerLine(time.Now(), "0"); !strings.Contains(got, "| 1.5 (10.0 virtual) |") {
		t.Errorf("virtual minutes are missing: %s", got)
	}
}

func TestAppendLedger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.md")
	r := result{}
	if err := r.appendLedger(path); err == nil {
		t.Error("a ledger was made where there is none")
	}
	if err := os.WriteFile(path, []byte("before\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.appendLedger(path); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil || !strings.HasPrefix(string(b), "before\n| ") || strings.Count(string(b), "\n") != 2 {
		t.Errorf("the ledger is %q, %v", b, err)
	}
}
