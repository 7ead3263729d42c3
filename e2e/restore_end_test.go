package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/s3test"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// TestADecidedRestoreIsFinishedByTheNextLeader kills the leader of the metadata
// group as soon as it has decided.
func TestADecidedRestoreIsFinishedByTheNextLeader(t *testing.T) {
	beforeRelease(t)
	_, dest, m := filled(t, localcluster.Options{Servers: 1, Shards: 2}, 2000)
	c := start(t, localcluster.Options{Servers: 3, Shards: 16}) // many to close
	var victim *localcluster.Server
	done := make(chan struct{})
	for range 10 { // a young cluster may elect another leader before anything is decided
		done = make(chan struct{})
		go func() {
			defer close(done)
			_, errout, code := c.restore(dest + "/a")
			t.Logf("exit code %d: %s", code, errout)
		}()
		if victim = c.decided(done); victim != nil {
			break
		}
	}
	if victim == nil {
		t.Fatal("no restore was decided")
	}
	c.killAll([]*localcluster.Server{victim})
	<-done
	c.restartAll([]*localcluster.Server{victim})
	// A checkpoint refuses while shards are of two epochs.
	again := c.createCheckpoint(dest, "again")
	if again.Rows() != m.Rows() || again.Epoch != 2 {
		t.Errorf("%d rows in epoch %d, want %d in 2", again.Rows(), again.Epoch, m.Rows())
	}
	for _, s := range c.Servers() {
		if logHas(t, s, "finished a restore that an earlier call had begun") {
			t.Logf("server %s finished it", s.Name)
		}
	}
}

// decided returns the server that decides a restore, nil if done is closed before.
func (c *cluster) decided(done <-chan struct{}) *localcluster.Server {
	c.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for ended := false; ; {
		for _, s := range c.Servers() {
			if logHas(c.t, s, "a restore is decided") {
				return s
			}
		}
		if ended {
			return nil
		}
		select {
		case <-done:
			ended = true // one more look
		case <-tick.C:
		}
	}
}

// TestARestoreEndsWhatAnotherStaged: nobody goes on with that one, and a begin does
// not take its place by itself.
func TestARestoreEndsWhatAnotherStaged(t *testing.T) {
	_, dest, m := filled(t, localcluster.Options{Servers: 1, Shards: 2}, 500)
	c := start(t, localcluster.Options{Servers: 1, Shards: 3})
	c.createCheckpoint(dest, "before") // by then every shard has a leader
	conn, err := rpc.Dial(c.Servers()[0].Addr, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for shard := range uint32(3) {
		req := &rowraftv1.RestorePartRequest{Shard: shard, Restore: bytes.Repeat([]byte{9}, 16), Step: &rowraftv1.RestorePartRequest_Begin{Begin: &rowraftv1.RestorePartBegin{TableEpoch: 2}}}
		ctx := deadline(t, patience)
		if err := poll(ctx, func() error { // a server that stands still takes no connection
			r, err := rowraftv1.NewReplicasClient(conn).RestorePart(ctx, req)
			if err != nil && !rowraft.CodeOf(err).Retryable() || err == nil && !r.GetStaged() {
				t.Fatalf("shard %d: %v, %v", shard, r, err)
			}
			return err
		}); err != nil {
			t.Fatalf("shard %d: %v", shard, err)
		}
	}
	if v := c.mustRestore(dest + "/a"); v.Epoch < 2 {
		t.Errorf("%+v", v)
	}
	if again := c.createCheckpoint(dest, "again"); again.Rows() != m.Rows() {
		t.Errorf("%d rows, want %d", again.Rows(), m.Rows())
	}
}

// TestNoStageOutlivesItsCaller: whoever restores dies while the destination hangs, and the
// shards forget what was staged although nobody can wait for the destination.
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

// TestCheckpointsInABucket: real servers write to an S3 server and read it.
func TestCheckpointsInABucket(t *testing.T) {
	s3test.Setenv(t, "bucket") // for the servers too
	c, _, local := filled(t, localcluster.Options{}, 1000)
	dest := "s3://bucket/models/ctr"
	m := c.createCheckpoint(dest, "a")
	if m.Rows() != local.Rows() {
		t.Errorf("%d rows in the bucket, %d in the directory", m.Rows(), local.Rows())
	}
	if code, out := verifies(t, dest+"/a"); code != 0 || !strings.Contains(out, `"verified": true`) {
		t.Errorf("verify: exit code %d: %s", code, out)
	}
	other := start(t, localcluster.Options{Servers: 1, Shards: 3})
	if v := other.mustRestore(dest + "/a"); v.Tables[0].Restored != 1000 {
		t.Errorf("%+v", v)
	}
	if got := other.digestOfAll(); got != c.digestOfAll() {
		t.Error("the restored cluster has another digest than its source")
	}
	if got := listed(t, dest); len(got) != 1 || got["a"] != "complete" {
		t.Errorf("list: %v", got)
	}
}
