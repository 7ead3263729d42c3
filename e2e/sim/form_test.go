package sim

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
)

func TestAClusterFormsAndTakesPushes(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		began := time.Now()
		c, err := Start(ctx, Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}()
		t.Logf("formed after %v", time.Since(began))
		cl, err := client.Dial(ctx, client.Options{Endpoints: c.Endpoints(), Dial: c.DialClient})
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		table, err := cl.CreateTable(ctx, rowraft.Schema{
			Name: "t", Kind: rowraft.Sparse, Dim: 2, Initializer: rowraft.Initializer{Kind: rowraft.InitZeros},
			Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
		}, true)
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			if _, err := table.Push(ctx, []rowraft.Key{7}, []float32{-1, -2}); err != nil {
				t.Fatal(err)
			}
		}
		var got [2]float32
		if err := cl.PullLinearizable(ctx, client.Segment{Table: table, Keys: []rowraft.Key{7}, Values: got[:]}); err != nil {
			t.Fatal(err)
		}
		if got != [2]float32{10, 20} {
			t.Errorf("row %v, want 10 20", got)
		}
		t.Logf("all done after %v", time.Since(began))
	})
}
