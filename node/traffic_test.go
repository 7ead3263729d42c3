package node

import (
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
)

// TestTrafficIsCounted: a server counts the requests, keys and bytes of each table by operation and result, and the
// time of each stage of a push.
func TestTrafficIsCounted(t *testing.T) {
	c, ctx := startCluster(t, 1, 1), testutil.Context(t)
	cl := c.dial()
	table, err := cl.CreateTable(ctx, counterSchema("clicks"), false)
	if err != nil {
		t.Fatal(err)
	}
	keys := []rowraft.Key{1, 2, 3}
	for range 2 {
		if _, err := table.Push(ctx, keys, make([]float32, 4*len(keys))); err != nil {
			t.Fatal(err)
		}
	}
	if err := table.Pull(ctx, keys, make([]float32, 4*len(keys))); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{
		`rowraft_requests_total{code="OK",op="push",table="clicks"}`:     2,
		`rowraft_request_keys_total{code="OK",op="push",table="clicks"}`: 6,
		`rowraft_request_keys_total{code="OK",op="pull",table="clicks"}`: 3,
		`rowraft_request_seconds_count{op="push"}`:                       2,
		`rowraft_request_seconds_count{op="pull"}`:                       1,
		`rowraft_push_stage_seconds_count{stage="queue"}`:                2,
	} {
		// More, if a slow machine made the client send a batch again.
		if got := c.nodes[0].metric(t, name); got < want {
			t.Errorf("%s: %v, want at least %v", name, got, want)
		}
	}
	for _, name := range []string{
		`rowraft_received_bytes_total{code="OK",op="push",table="clicks"}`,
		`rowraft_sent_bytes_total{code="OK",op="pull",table="clicks"}`,
		`rowraft_requests_total{code="OK",op="open_session",table=""}`,
		`rowraft_push_stage_seconds_count{stage="log"}`,
		`rowraft_push_stage_seconds_count{stage="replicate"}`,
		`rowraft_push_stage_seconds_count{stage="apply"}`,
		`rowraft_push_stage_seconds_sum{stage="log"}`,
	} {
		if got := c.nodes[0].metric(t, name); got <= 0 {
			t.Errorf("%s: %v, want more than 0", name, got)
		}
	}
}
