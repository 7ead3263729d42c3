package demo

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/localcluster"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// A server that stands still for longer than a connection waits is asked again; a replica that
// is fenced is a finding.
func TestTheDemoAsksAgainForADigest(t *testing.T) {
	m := &clustermap.Map{Nodes: []clustermap.Node{{ID: "1", Addr: "a:1"}, {ID: "2", Addr: "b:1"}},
		Shards: []clustermap.Shard{{Replicas: []clustermap.Replica{{Node: "1"}, {Node: "2"}}}}}
	asked := 0
	out, err := shardDigests(t.Context(), m, 0, func(addr string, index uint64) (*rowraftv1.DigestReply, error) {
		if asked++; addr == "b:1" && asked < 6 {
			return nil, rowraft.Errorf(rowraft.CodeUnknown, "connection timed out")
		}
		return &rowraftv1.DigestReply{AppliedIndex: max(index, 7), Digest: []byte{1}}, nil
	})
	if err != nil || len(out) != 2 || out[0] != out[1] {
		t.Errorf("digests %q, %v", out, err)
	}
	if _, err := shardDigests(t.Context(), m, 0, func(string, uint64) (*rowraftv1.DigestReply, error) {
		return nil, rowraft.Errorf(rowraft.CodeFenced, "fenced")
	}); rowraft.CodeOf(err) != rowraft.CodeFenced {
		t.Errorf("of a fenced replica: %v", err)
	}
}

// TestTrainersThatCannotAllStartEnd: one that has an event to tell is no more there, nor who
// reads it, when another one could not be started.
func TestTrainersThatCannotAllStartEnd(t *testing.T) {
	before := goleak.IgnoreCurrent()
	dir := t.TempDir()
	binary, told := filepath.Join(dir, "trainer"), filepath.Join(dir, "told")
	script := "#!/bin/sh\necho '{\"event\": \"step\"}' >&2\ntouch " + told + "\nexec sleep 600\n"
	if err := os.WriteFile(binary, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := localcluster.StartTrainers(binary, dir, func(rank int) string {
		limit := time.Now().Add(time.Minute)
		for rank == 1 && os.Rename(told, binary) != nil { // an empty file is no program
			if time.Now().After(limit) {
				t.Fatal("the first one does not run")
			}
		}
		return ""
	}, nil, 2)
	if err == nil {
		t.Fatal("an empty file was started")
	}
	goleak.VerifyNone(t, before)
}
