package replica

import (
	"context"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/shard"
)

// TestScanStopsWhenItMust: a server that stops ends its scans, so that the client asks another server. A
// scan never continues with other tables than those it began with.
func TestScanStopsWhenItMust(t *testing.T) {
	m, err := shard.New(shard.Config{Epoch: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	stopping, stop := context.WithCancel(t.Context())
	h, r := New(Options{Stopping: stopping}), &replica{machine: m}
	if err := h.mayGoOn(r, 2); rowraft.CodeOf(err) != rowraft.CodeSessionExpired {
		t.Errorf("tables of another epoch: %v", err)
	}
	stop()
	if err := h.mayGoOn(r, 3); rowraft.CodeOf(err) != rowraft.CodeClosing {
		t.Errorf("a server that stops: %v", err)
	}
}
