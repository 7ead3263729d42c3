package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/rowraft/rowraft/internal/localcluster"
)

// TestNoStageOutlivesItsCaller: the command dies while the destination hangs, and the
// shards drop what was staged although no call can wait for the destination.
func TestNoStageOutlivesItsCaller(t *testing.T) {
	_, dest, m := filled(t, localcluster.Options{Servers: 1, Shards: 2}, 500)
	stream := filepath.Join(dest, "a", m.Parts[1].Stream.Name)
	if err := os.Rename(stream, stream+".kept"); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(stream, 0o600); err != nil {
		t.Fatal(err)
	}
	c := start(t, localcluster.Options{Servers: 1, Shards: 3})
	c.createCheckpoint(t.TempDir(), "before") // by then every shard has a leader
	staged := func() (n int, err error) {
		st, err := nodeStatus(t.Context(), c.Servers()[0])
		for _, r := range st.GetReplicas() {
			if len(r.StagedRestore) > 0 {
				n++
			}
		}
		return n, err
	}
	ctx, kill := context.WithCancel(deadline(t, patience))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for code := 4; code == 4; { // again, if a leader was lost
			var errout string
			_, errout, code = c.rowraft(ctx, "checkpoint", "restore", dest+"/a", "--table", "emb", "--yes")
			t.Logf("exit code %d: %s", code, errout)
		}
	}()
	waitFor := func(what string, shards int) {
		t.Helper()
		if err := poll(deadline(t, patience), func() error {
			if n, err := staged(); err != nil || n != shards {
				return fmt.Errorf("%s: %d shards have a stage, want %d; %v", what, n, shards, err)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	waitFor("while it is restored", 3)
	kill()
	<-ended
	waitFor("its caller is gone", 0)
	// The destination answers: a file that ends at once.
	w, err := os.OpenFile(stream, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	if err := os.Rename(stream+".kept", stream); err != nil {
		t.Fatal(err)
	}
	c.mustRestore(dest + "/a")
}
