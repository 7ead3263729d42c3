package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/testutil"
)

// TestNoStageOutlivesItsCaller: the caller of a restore leaves while the destination hangs, and the shards drop what
// was staged, although no call can wait for the destination.
func TestNoStageOutlivesItsCaller(t *testing.T) {
	source, dest := startLive(t, 2), t.TempDir()
	source.fill(500)
	m := source.createCheckpoint(dest, "a")
	stream := filepath.Join(dest, "a", m.Shards[1].Stream.Name)
	if err := os.Rename(stream, stream+".kept"); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(stream, 0o600); err != nil {
		t.Fatal(err)
	}
	c := startLive(t, 3)
	// The destination answers: a file that ends at once for those that have it open, and the stream for later readers.
	// A server that reads it cannot stop before.
	answer := sync.OnceValue(func() error {
		w, err := os.OpenFile(stream, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		return errors.Join(os.Rename(stream+".kept", stream), w.Close())
	})
	t.Cleanup(func() { _ = answer() })
	wantStages := func(when string, want int) {
		t.Helper()
		testutil.Eventually(t, fmt.Sprintf("%s: %d shards have a stage", when, want), func() bool {
			n := 0
			for _, r := range c.replicas() {
				if len(r.StagedRestore) > 0 {
					n++
				}
			}
			return n == want
		})
	}
	ctx, leave := context.WithCancel(testutil.Context(t))
	ended := make(chan int, 1)
	go func() {
		code := cli.ExitUnavailable
		for code == cli.ExitUnavailable && ctx.Err() == nil { // again, if a leader was lost
			code = run(ctx, c.args("checkpoint", "restore", dest+"/a", "--table", "emb", "--yes"), io.Discard, io.Discard)
		}
		ended <- code
	}()
	wantStages("while it is restored", 3)
	leave()
	if code := <-ended; code == 0 {
		t.Error("a restore whose destination hangs has ended well")
	}
	wantStages("after its caller has left", 0)
	if err := answer(); err != nil {
		t.Fatal(err)
	}
	c.restore(dest + "/a")
}
