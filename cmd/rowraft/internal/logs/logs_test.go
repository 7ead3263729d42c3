package logs

import (
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/raftstore/offline"
	"github.com/rowraft/rowraft/wire"
)

// TestLogDumpKnowsEveryKind: a mark, a proof or a step of a restore is no error.
func TestLogDumpKnowsEveryKind(t *testing.T) {
	h := wire.EntryHeader{Version: 1, Epoch: 1}
	two := []*wire.Part{{Client: rowraft.ClientID{1}, Seq: 1}, {Client: rowraft.ClientID{2}, Seq: 1}}
	sum, _ := wire.SumPart(nil, two, 0)
	ofParts := h
	ofParts.Kind, ofParts.Parts = wire.EntryParts, 1
	sums := make([]byte, wire.EntryHeaderSize)
	wire.PutEntryHeader(sums, ofParts)
	for _, tc := range []struct {
		kind, what string
		entry      []byte
	}{
		{"parts", "sum of 2 pushes: no rows", wire.AppendPart(sums, &sum)},
		{"mark", "of a checkpoint, 0700", wire.MarkEntry(h, wire.MarkID{7})},
		{"proof", "every replica notes", wire.ProofEntry(h, &wire.Proof{Step: wire.ProofMark})},
		{"proof", "at mark 9 most replicas have 3 rows, digest 0a00",
			wire.ProofEntry(h, &wire.Proof{Step: wire.ProofAgreed, Mark: 9, Rows: 3, Digest: [16]byte{10}})},
		{"proof", "at mark 9 no majority", wire.ProofEntry(h, &wire.Proof{Step: wire.ProofDivided, Mark: 9})},
		{"restore-begin", "to table epoch 2, 0 tables", wire.RestoreBeginEntry(h,
			&wire.RestoreBegin{ID: wire.RestoreID{1}, Epoch: 2})},
		{"restore-rows", "chunk 5", wire.RestoreRowsEntry(h, wire.RestoreID{1}, 5, nil)},
		{"restore-close", "to table epoch 2, 8 rows", wire.RestoreCloseEntry(h,
			&wire.RestoreClose{ID: wire.RestoreID{1}, Epoch: 2, Rows: 8})},
		{"restore-drop", "restore 0100", wire.RestoreDropEntry(h, wire.RestoreID{1})},
	} {
		e := newLogEntryJSON("shard-0", offline.Entry{Kind: offline.KindCommand, Data: tc.entry}, nil)
		if lines := e.lines(false); e.Kind != tc.kind || e.Error != "" || len(lines) != 1 ||
			!strings.Contains(lines[0], tc.what) {
			t.Errorf("kind %q, error %q, %q; want %q and %q", e.Kind, e.Error, lines, tc.kind, tc.what)
		}
	}
}
