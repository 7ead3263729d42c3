package transport

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft/internal/allocs"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/raftstore/entry"
)

func testAppend(t testing.TB) *raft.AppendEntriesRequest {
	t.Helper()
	a := &raft.AppendEntriesRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: 3, ID: []byte("r1"), Addr: []byte("n1\x00r2")},
		Term:      5, PrevLogEntry: 6, PrevLogTerm: 4, LeaderCommitIndex: 3,
		Entries: []*raft.Log{sealedEntry(t, 7, 5, []byte("seven")), sealedEntry(t, 8, 5, bytes.Repeat([]byte("8"), 70_000)),
			sealedEntry(t, 9, 5, nil)},
	}
	a.Entries[0].AppendedAt = time.Unix(0, 1700000000000000001)
	return a
}

// wireOf is what a request is on the wire.
func wireOf(t testing.TB, a *raft.AppendEntriesRequest) []byte {
	t.Helper()
	b, ok := marshalAppend(nil, appendKind, a)
	if !ok {
		t.Fatal("the request does not fit")
	}
	for _, l := range a.Entries {
		b = append(b, l.Data...)
	}
	return b
}

func readTestAppend(b []byte) (*raft.AppendEntriesRequest, error) {
	_, a, err := readAppend(bufio.NewReader(bytes.NewReader(b)), 1<<20, 8<<20)
	return a, err
}

func TestAppendRequestRoundTrip(t *testing.T) {
	want := testAppend(t)
	b := wireOf(t, want)
	got, err := readTestAppend(b)
	if err != nil {
		t.Fatal(err)
	}
	if !got.Entries[0].AppendedAt.Equal(want.Entries[0].AppendedAt) {
		t.Errorf("appended at %v", got.Entries[0].AppendedAt)
	}
	got.Entries[0].AppendedAt = want.Entries[0].AppendedAt
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v\nwant %+v", got, want)
	}
	for cut := range len(b) {
		if cut > 300 && cut < len(b)-10 {
			continue
		}
		if _, err := readTestAppend(b[:cut]); err == nil || cut > 0 && errors.Is(err, io.EOF) {
			t.Errorf("%d of %d bytes: %v", cut, len(b), err)
		}
	}
	for i := range appendHeadBytes + 11 + 3*entry.HeadBytes {
		flipped := bytes.Clone(b)
		flipped[i] ^= 4
		if _, err := readTestAppend(flipped); rowraft.CodeOf(err) != rowraft.CodeCorrupt &&
			!errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("a flipped bit in byte %d: %v", i, err)
		}
	}
}

// goldenAppend is testAppend with its first entry, without the data. The bytes were made by hand from
// docs/formats/peer.md; the checksums are those of testdata/rowlog.py's crc32c.
const goldenAppend = "6f6b84f2" + "00000000" + // crc, zero
	// term, previous entry and its term, commit
	"0500000000000000" + "0600000000000000" + "0400000000000000" + "0300000000000000" +
	"01000000" + "0b000000" + "03000000" + "00000000" + "0000000000000000" + // entries, bytes of names, protocol
	"02007231" + "05006e31007232" + // r1; n1 and r2
	"0700000000000000" + "0500000000000000" + "01002a36fe9c9717" + "00000000" + "05000000" + "74a846e360f5ff90" // entry 7

func TestAppendGoldenBytes(t *testing.T) {
	a := testAppend(t)
	a.Entries = a.Entries[:1]
	head, ok := marshalAppend(nil, appendKind, a)
	if got := hex.EncodeToString(head); !ok || got != goldenAppend {
		t.Errorf("request\n%s\nwant\n%s", got, goldenAppend)
	}
	const answer = "ec3be7ff" + "00010000" + "0500000000000000" + "0700000000000000" + "03000000" + "00000000"
	r := &raft.AppendEntriesResponse{RPCHeader: raft.RPCHeader{ProtocolVersion: 3}, Term: 5, LastLog: 7, Success: true}
	if got := hex.EncodeToString(marshalAppendReply(r, nil)); got != answer {
		t.Errorf("answer\n%s\nwant\n%s", got, answer)
	}
}

func TestAppendReplies(t *testing.T) {
	for _, want := range []raft.AppendEntriesResponse{
		{RPCHeader: raft.RPCHeader{ProtocolVersion: 3}, Term: 9, LastLog: 4, Success: true},
		{RPCHeader: raft.RPCHeader{ProtocolVersion: 3}, Term: 9, NoRetryBackoff: true},
	} {
		var got raft.AppendEntriesResponse
		if whole, err := readAppendReply(bytes.NewReader(marshalAppendReply(&want, nil)), &got); !whole || err != nil ||
			!reflect.DeepEqual(got, want) {
			t.Errorf("read %+v (%v, %v), want %+v", got, whole, err, want)
		}
	}
	var got raft.AppendEntriesResponse
	long := errors.New(strings.Repeat("x", 5000))
	if whole, err := readAppendReply(bytes.NewReader(marshalAppendReply(nil, long)), &got); !whole || err == nil ||
		len(err.Error()) > maxAppendText+100 {
		t.Errorf("a failure reads as %v (%v)", err, whole)
	}
}

// Sizes that a peer claims are refused before they are allocated.
func TestAppendLimits(t *testing.T) {
	a := testAppend(t)
	for _, c := range []struct{ entry, all int64 }{{60_000, 8 << 20}, {1 << 20, 60_000}} {
		_, _, err := readAppend(bufio.NewReader(bytes.NewReader(wireOf(t, a))), c.entry, c.all)
		if rowraft.CodeOf(err) != rowraft.CodeCorrupt {
			t.Errorf("entries of at most %d, all of at most %d: %v", c.entry, c.all, err)
		}
	}
	a.Entries[2].Extensions = nil
	if _, ok := marshalAppend(nil, appendKind, a); ok {
		t.Error("an entry without a seal was taken")
	}
}

func FuzzAppendRequest(f *testing.F) {
	good := wireOf(f, testAppend(f))
	f.Add(good[:400])
	f.Add(good[:appendHeadBytes+12+3*entry.HeadBytes])
	small := testAppend(f)
	small.Entries = small.Entries[:1]
	f.Add(wireOf(f, small))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= appendHeadBytes { // set the checksum, so that the bytes after it are tested too
			b = bytes.Clone(b)
			end := appendHeadBytes + uint64(binary.LittleEndian.Uint32(b[44:])) +
				entry.HeadBytes*uint64(binary.LittleEndian.Uint32(b[40:]))
			binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:min(end, uint64(len(b)))], castagnoli))
		}
		allocs.Frugal(t, b, func() {
			a, err := readTestAppend(b)
			if err == nil && !bytes.HasPrefix(b, wireOf(t, a)) {
				t.Errorf("%x was read as %+v", b, a)
			}
		})
	})
}

func FuzzAppendReply(f *testing.F) {
	f.Add(marshalAppendReply(&raft.AppendEntriesResponse{Term: 2, Success: true}, nil))
	f.Add(marshalAppendReply(nil, errors.New("no")))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= appendReplyBytes {
			b = bytes.Clone(b)
			end := min(uint64(len(b)), appendReplyBytes+uint64(binary.LittleEndian.Uint32(b[28:])))
			binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:end], castagnoli))
		}
		allocs.Frugal(t, b, func() {
			var a raft.AppendEntriesResponse
			if whole, err := readAppendReply(bytes.NewReader(b), &a); err == nil && !whole {
				t.Error("an answer without an error ends the connection")
			}
		})
	})
}

// sealedEntry is an entry as a log holds it.
func sealedEntry(t testing.TB, index, term uint64, data []byte) *raft.Log {
	t.Helper()
	l := &raft.Log{Index: index, Term: term, Type: raft.LogCommand, Data: data, Extensions: entry.Seal(data)}
	if err := entry.Complete(l); err != nil {
		t.Fatal(err)
	}
	return l
}
