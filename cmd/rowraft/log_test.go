package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/logs"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/raftstore/raftlog"
	"github.com/rowraft/rowraft/wire"
)

// seen is a state machine that only knows how far it is.
type seen struct{ index rowraft.Index }

func (s *seen) Apply(i rowraft.Index, _ []byte) any   { s.index = i; return nil }
func (s *seen) AppliedIndex() rowraft.Index           { return s.index }
func (s *seen) Snapshot() (raftstore.Snapshot, error) { return nil, io.ErrUnexpectedEOF }
func (s *seen) Restore(io.Reader) error               { return io.ErrUnexpectedEOF }

// TestLogCommands dumps and verifies the log of a server, while it runs and stopped.
func TestLogCommands(t *testing.T) {
	dir := t.TempDir()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	store, err := raftstore.Open(raftstore.Options{
		Dir: filepath.Join(dir, "raft"), Cluster: "c", Node: "n", Listener: ln, Backend: raftlog.Bolt, DiskReserveBytes: -1,
		DiskStallLimit: time.Minute,
		Logger:         slog.New(slog.DiscardHandler), Fatal: func(err error) { t.Error(err) },
		Resolve: func(rowraft.NodeID) (string, error) { return "", io.EOF },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	g, err := store.StartGroup(raftstore.GroupConfig{ID: "shard-0", Replica: "r", Machine: &seen{},
		Bootstrap: []raftstore.Member{{Replica: "r", Node: "n"}}})
	if err != nil {
		t.Fatal(err)
	}
	h := wire.EntryHeader{Version: 1, Epoch: 1, LogTime: 7}
	for {
		if _, _, err = g.Propose(wire.OpenSessionEntry(h, wire.Opening{Client: rowraft.ClientID{0xab}, Incarnation: 3})).Wait(
			t.Context()); err == nil {
			break
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
	rowraftSays := func(wantCode int, args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		if code := run(context.Background(), args, &out, &errs); code != wantCode {
			t.Errorf("rowraft %v: exit code %d, want %d: %s", args, code, wantCode, errs.String())
		}
		return out.String() + errs.String()
	}
	if says := rowraftSays(cli.ExitFailed, "log", "dump", dir); !strings.Contains(says, "running server") ||
		!strings.Contains(says, "stop the server") {
		t.Errorf("next to a running server: %s", says)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if says := rowraftSays(cli.ExitDone, "log", "dump", dir, "--group", "shard-0"); !strings.Contains(says,
		"client ab000000, incarnation 3") {
		t.Errorf("dump: %s", says)
	}
	var v logs.Dump
	if err := json.Unmarshal([]byte(rowraftSays(cli.ExitDone, "log", "dump", dir, "-o", "json")), &v); err != nil ||
		len(v.Groups) != 1 {
		t.Fatalf("dump as JSON: %+v, %v", v, err)
	}
	if e := v.Groups[0].Entries; len(e) == 0 || e[len(e)-1].Kind != "open-session" || e[len(e)-1].CRC != "ok" ||
		e[len(e)-1].Time != 7 {
		t.Errorf("entries %+v", e)
	}
	if says := rowraftSays(cli.ExitDone, "log", "verify", dir); !strings.Contains(says, "shard-0") {
		t.Errorf("verify: %s", says)
	}
	db := filepath.Join(dir, "raft", "groups", "shard-0", "log", "raft.db")
	b, err := os.ReadFile(db)
	if err != nil {
		t.Fatal(err)
	}
	b = bytes.ReplaceAll(b, []byte{0xab, 0, 0, 0, 0, 0, 0, 0, 0}, []byte{0xac, 0, 0, 0, 0, 0, 0, 0, 0})
	if err := os.WriteFile(db, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if says := rowraftSays(cli.ExitVerdict, "log", "verify", dir); !strings.Contains(says, "WRONG") ||
		!strings.Contains(says, "checksum") {
		t.Errorf("verify after damage: %s", says)
	}
	rowraftSays(cli.ExitUsage, "log", "verify")
}
