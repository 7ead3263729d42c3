package node

import (
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/testutil"
)

// A client reads what another client's push was acknowledged for, on any leader.
func TestLinearizableReadSeesOthersPushes(t *testing.T) {
	c := startCluster(t, 3, 2)
	ctx := testutil.Context(t)
	writer, reader := c.dial(), c.dial()
	table, err := writer.CreateTable(ctx, counterSchema("user"), false)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := reader.Table(ctx, "user")
	if err != nil {
		t.Fatal(err)
	}
	keys := []rowraft.Key{1, 2, 3, 4, 5, 6, 7, 8}
	grads := make([]float32, len(keys)*4)
	for i := range grads {
		grads[i] = -1
	}
	for push := 1; push <= 20; push++ {
		if _, err := table.Push(ctx, keys, grads); err != nil {
			t.Fatal(err)
		}
		got := make([]float32, len(grads))
		if err := reader.PullLinearizable(ctx, client.Segment{Table: theirs, Keys: keys, Values: got}); err != nil {
			t.Fatal(err)
		}
		for i, v := range got {
			if v != float32(push) {
				t.Fatalf("key %d, dimension %d reads %v after %d acknowledged pushes", keys[i/4], i%4, v, push)
			}
		}
		if push == 10 {
			c.stopNode(0)
		}
	}
}
