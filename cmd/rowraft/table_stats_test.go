package main

import (
	"encoding/json"
	"testing"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/table"
	"github.com/rowraft/rowraft/internal/cli"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// TestStatsOfAStreamingTable: what the leaders of both shards report is added up,
// what a follower says is not.
func TestStatsOfAStreamingTable(t *testing.T) {
	s := sample()
	s.Map.Tables[0].Admission = &rowraftv1.Admission{Kind: 1, Count: 3}
	for _, n := range s.Nodes {
		for _, r := range n.Replicas {
			k := uint64(1)
			if r.Role != "leader" {
				k = 1000
			}
			x := r.Tables[0]
			x.Admitted, x.Rejected, x.Evicted, x.Expired, x.Candidates = k, 2*k, 3*k, 4*k, 5*k
		}
	}
	addr := start(t, &fakeCluster{status: s})
	got := rowraftCmd(t, "table", "stats", "user_emb", "-o", "json", "--insecure", "--endpoints", addr)
	var v table.Detail
	if err := json.Unmarshal([]byte(got.out), &v); err != nil || got.code != cli.ExitDone {
		t.Fatalf("%+v, %v", got, err)
	}
	if want := (table.Stream{Admitted: 2, Rejected: 4, Evicted: 6, Expired: 8, Candidates: 10}); v.Stream == nil ||
		*v.Stream != want || v.RowBytes != 214.7 {
		t.Errorf("stream %+v, %v bytes a row; want %+v and 214.7", v.Stream, v.RowBytes, want)
	}
}
