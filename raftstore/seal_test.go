package raftstore

import (
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
)

// A flipped bit in the log, in the data or in the place of an entry, is detected before the entry reaches a machine.
func TestFlippedBitInLogIsFatal(t *testing.T) {
	for name, flip := range map[string]func(*raft.Log){
		"data":     func(e *raft.Log) { e.Data = []byte("flip mE") },
		"index":    func(e *raft.Log) { e.Index ^= 1 << 40 },
		"term":     func(e *raft.Log) { e.Term ^= 2 },
		"type":     func(e *raft.Log) { e.Type = raft.LogNoop },
		"checksum": func(e *raft.Log) { e.Extensions = append([]byte{e.Extensions[0] ^ 1}, e.Extensions[1:]...) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var logs sync.Map
			c := startedCluster(t, 3, faultyLogs(&logs, func(o *Options) { o.EntryCacheBytes = 1 }))
			c.propose("before")
			f := c.followers()[0]
			faultyOf(&logs, f).change(func(l *faultyLog) {
				l.get = func(e *raft.Log) {
					if string(e.Data) == "flip me" {
						flip(e)
					}
				}
			})
			c.propose("flip me")
			// Found while reading: a leader must not send it to others either.
			if err := waitFatal(t, f); rowraft.CodeOf(err) != rowraft.CodeCorrupt ||
				!strings.Contains(err.Error(), "read entry") {
				t.Errorf("Fatal(%v), want CodeCorrupt while reading", err)
			}
			for _, e := range f.machine.list() {
				if e == "flip mE" {
					t.Error("the flipped entry was applied")
				}
			}
		})
	}
}
