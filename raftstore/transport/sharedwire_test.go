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

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/allocs"
	"github.com/rowraft/rowraft/raftstore/entry"
)

func TestSharedGoldenBytes(t *testing.T) {
	// crc, bytes after the head, id; then group g-1 and a request as in TestAppendGoldenBytes
	const none = "0000000000000000"
	const last = "0600000000000000" + "0800000000000000" + "0500000000000000"
	for k, tc := range []struct{ crc, inner, words string }{
		appendKind:       {"467ba8c4", "913dafac" + "00000000", "0500000000000000" + none + none},
		preVoteKind:      {"5421c0f5", "f358e04d" + "01000000", last},
		voteKind:         {"82bdaeff", "28727d63" + "02000000", last},
		transferVoteKind: {"9f1b2f05", "61940979" + "03000000", last},
		timeoutNowKind:   {"092d82c1", "680b6543" + "04000000", none + none + none},
		supportKind:      {"3322f211", "d7c13324" + "05000000", last},
	} {
		want := tc.crc + "4f000000" + "0900000000000000" + "03672d31" + tc.inner + tc.words + none +
			"00000000" + "0b000000" + "03000000" + "00000000" + none + "02007231" + "05006e31007232"
		a := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: 3, ID: []byte("r1"),
			Addr: []byte("n1\x00r2")}}
		switch kind(k) {
		case appendKind:
			a.Term = 5
		case preVoteKind, voteKind, transferVoteKind, supportKind:
			a.Term, a.PrevLogEntry, a.PrevLogTerm = 6, 8, 5
		}
		got, ok := appendShared(nil, 9, func(b []byte) ([]byte, bool) {
			return appendSharedRequest(b, kind(k), "g-1", a)
		})
		if hex.EncodeToString(got) != want || !ok {
			t.Errorf("request\n%x\nwant\n%s", got, want)
		}
	}
	const entries = "6eb4c1f6" + "7c000000" + "0900000000000000" + "03672d31" + goldenAppend + "736576656e"
	a := testAppend(t)
	a.Entries = a.Entries[:1]
	got, ok := appendShared(nil, 9, func(b []byte) ([]byte, bool) { return appendSharedRequest(b, appendKind, "g-1", a) })
	if hex.EncodeToString(got) != entries || !ok {
		t.Errorf("request with an entry\n%x\nwant\n%s", got, entries)
	}
	const answer = "34138cac" + "26000000" + "0900000000000000" + "00" + "03006e3200" +
		"ec3be7ff" + "00010000" + "0500000000000000" + "0700000000000000" + "03000000" + "00000000"
	r := &raft.AppendEntriesResponse{RPCHeader: raft.RPCHeader{ProtocolVersion: 3, Addr: []byte("n2\x00")}, Term: 5,
		LastLog: 7, Success: true}
	got, ok = appendShared(nil, 9, answerOf(raft.RPCResponse{Response: r}))
	if hex.EncodeToString(got) != answer || !ok {
		t.Errorf("answer\n%x\nwant\n%s", got, answer)
	}
	const refusal = "5d3aaf32" + "01000000" + "0900000000000000" + "01"
	got, _ = appendShared(nil, 9, func(b []byte) ([]byte, bool) { return append(b, sharedRefused), true })
	if hex.EncodeToString(got) != refusal {
		t.Errorf("refusal\n%x\nwant\n%s", got, refusal)
	}
}

func readTestShared(b []byte) (sharedMessage, error) {
	return readShared(bufio.NewReaderSize(bytes.NewReader(b), sharedReadBytes), maxSharedRequest)
}

func TestSharedRoundTrip(t *testing.T) {
	want := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: 3, ID: []byte("r1"),
		Addr: []byte("n1\x00r2")}, Term: 5, PrevLogEntry: 8, PrevLogTerm: 4, LeaderCommitIndex: 8}
	long := strings.Repeat("g", 255)
	b, _ := appendSharedRequest(nil, appendKind, long, want)
	if k, group, got, err := parseSharedRequest(b); err != nil || k != appendKind || group != long ||
		!reflect.DeepEqual(got, want) {
		t.Errorf("read kind %d, %s, %+v (%v)", k, group, got, err)
	}
	for _, k := range []kind{voteKind, timeoutNowKind, kinds} { // the first two have no commit index
		b, _ := appendSharedRequest(nil, k, long, want)
		if _, _, _, err := parseSharedRequest(b); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
			t.Errorf("kind %d was read: %v", k, err)
		}
	}
	b, _ = appendShared(nil, 77, func(b []byte) ([]byte, bool) {
		return appendSharedRequest(b, appendKind, "shard-3", want)
	})
	m, err := readTestShared(b)
	if err != nil {
		t.Fatal(err)
	}
	_, group, got, err := parseSharedRequest(m.body)
	if err != nil || m.id != 77 || group != "shard-3" || !reflect.DeepEqual(got, want) {
		t.Errorf("read %d, %s, %+v (%v)", m.id, group, got, err)
	}
	for cut := range len(b) {
		if _, err := readTestShared(b[:cut]); err == nil || cut > 0 && errors.Is(err, io.EOF) {
			t.Errorf("%d of %d bytes: %v", cut, len(b), err)
		}
		flipped := bytes.Clone(b)
		flipped[cut] ^= 4
		if _, err := readTestShared(flipped); rowraft.CodeOf(err) != rowraft.CodeCorrupt &&
			!errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("a flipped bit in byte %d: %v", cut, err)
		}
	}
	for _, failure := range []error{nil, errors.New("no")} {
		want := raft.AppendEntriesResponse{RPCHeader: raft.RPCHeader{ProtocolVersion: 3, Addr: []byte("n2")}, Term: 9,
			LastLog: 4, NoRetryBackoff: true}
		body, _ := appendSharedAnswer(nil, &want, failure)
		var got raft.AppendEntriesResponse
		answered, err, corrupt := parseSharedAnswer(body, &got)
		if !answered || corrupt != nil || (err == nil) != (failure == nil) || err == nil && !reflect.DeepEqual(got, want) {
			t.Errorf("failure %v: read %+v, %v, %v, %v", failure, got, answered, err, corrupt)
		}
	}
}

// smallAppend is testAppend with entries that share a connection.
func smallAppend(t testing.TB) *raft.AppendEntriesRequest {
	a := testAppend(t)
	a.Entries[1] = sealedEntry(t, 8, 5, []byte("eight"))
	return a
}

// The entries of a request follow it, each as long as its head says, and nothing follows them.
func TestSharedEntriesRoundTrip(t *testing.T) {
	want := smallAppend(t)
	body, _ := appendSharedRequest(nil, appendKind, "g", want)
	_, _, got, err := parseSharedRequest(body)
	if err != nil || !got.Entries[0].AppendedAt.Equal(want.Entries[0].AppendedAt) {
		t.Fatalf("read %+v (%v)", got, err)
	}
	got.Entries[0].AppendedAt = want.Entries[0].AppendedAt
	for i, l := range got.Entries { // an empty entry has empty data or none
		if want := want.Entries[i]; len(want.Data) == 0 && len(l.Data) == 0 {
			l.Data = want.Data
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v\nwant %+v", got, want)
	}
	for cut := range len(body) {
		if _, _, _, err := parseSharedRequest(body[:cut]); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
			t.Errorf("%d of %d bytes were read: %v", cut, len(body), err)
		}
	}
	if _, _, _, err := parseSharedRequest(append(body, 0)); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
		t.Errorf("a byte after the entries was read: %v", err)
	}
}

// Entries of up to maxSharedBytes and maxSharedEntries in all share a connection, and the longest request has room in
// what the receiver reads.
func TestWhatMayShare(t *testing.T) {
	entries := func(n, bytes int) *raft.AppendEntriesRequest {
		a := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ID: make([]byte, maxAppendNames-4)}, Term: 1}
		for i := range n {
			size := bytes / n
			if i == 0 {
				size += bytes % n
			}
			a.Entries = append(a.Entries, sealedEntry(t, uint64(i+1), 1, make([]byte, size)))
		}
		return a
	}
	for _, tc := range []struct {
		n, bytes int
		want     bool
	}{{0, 0, true}, {1, maxSharedBytes, true}, {1, maxSharedBytes + 1, false}, {2, maxSharedBytes + 1, false},
		{maxSharedEntries, maxSharedBytes, true}, {maxSharedEntries + 1, maxSharedBytes, false}} {
		a := entries(tc.n, tc.bytes)
		if got := mayShare(a); got != tc.want {
			t.Errorf("%d entries of %d bytes may share: %v", tc.n, tc.bytes, got)
		}
		if !tc.want {
			body, _ := appendSharedRequest(nil, appendKind, "g", a)
			if _, _, _, err := parseSharedRequest(body); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
				t.Errorf("%d entries of %d bytes were read: %v", tc.n, tc.bytes, err)
			}
			continue
		}
		b, ok := appendShared(nil, 1, func(b []byte) ([]byte, bool) {
			return appendSharedRequest(b, appendKind, strings.Repeat("g", 255), a)
		})
		m, err := readTestShared(b)
		if err != nil || !ok {
			t.Fatalf("%d entries of %d bytes: %v", tc.n, tc.bytes, err)
		}
		if _, _, got, err := parseSharedRequest(m.body); err != nil || len(got.Entries) != tc.n {
			t.Errorf("%d entries of %d bytes: %v", tc.n, tc.bytes, err)
		}
	}
}

// TestAPartialMessageIsNotAwaited: the reader of a connection waits for the rest of a message only after it has
// answered the messages before it.
func TestAPartialMessageIsNotAwaited(t *testing.T) {
	one, _ := appendShared(nil, 1, func(b []byte) ([]byte, bool) { return append(b, "body"...), true })
	for cut := range len(one) + 1 {
		r := bufio.NewReaderSize(bytes.NewReader(append(bytes.Clone(one), one[:cut]...)), sharedReadBytes)
		if _, err := readShared(r, maxSharedRequest); err != nil {
			t.Fatal(err)
		}
		if cut > 0 {
			_, _ = r.Peek(1) // fill the buffer
		}
		if got := hasShared(r); got != (cut == len(one)) {
			t.Errorf("with %d of %d bytes it has a message: %v", cut, len(one), got)
		}
	}
}

// FuzzShared: bytes of a peer end the connection or are read as what they say.
func FuzzShared(f *testing.F) {
	a := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: 3, ID: []byte("r1"),
		Addr: []byte("n1\x00r2")}, Term: 5, LeaderCommitIndex: 7, PrevLogEntry: 7}
	request, _ := appendShared(nil, 1, func(b []byte) ([]byte, bool) {
		return appendSharedRequest(b, appendKind, "g", a)
	})
	answer, _ := appendShared(nil, 1, answerOf(raft.RPCResponse{Response: &raft.AppendEntriesResponse{Term: 2}}))
	vote, _ := appendShared(nil, 1, func(b []byte) ([]byte, bool) {
		return appendSharedRequest(b, voteKind, "g", &raft.AppendEntriesRequest{Term: 3, PrevLogEntry: 2,
			PrevLogTerm: 1})
	})
	entries, _ := appendShared(nil, 1, func(b []byte) ([]byte, bool) {
		return appendSharedRequest(b, appendKind, "g", smallAppend(f))
	})
	f.Add(request)
	f.Add(entries)
	f.Add(vote)
	f.Add(answer)
	f.Add(request[:40])
	long, _ := appendShared(nil, 1, func(b []byte) ([]byte, bool) {
		return appendSharedRequest(b, appendKind, strings.Repeat("g", 255), a)
	})
	f.Add(long)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= sharedHeadBytes { // set the checksums, so that the bytes after them are tested too
			b = bytes.Clone(b)
			end := min(uint64(len(b)), sharedHeadBytes+uint64(binary.LittleEndian.Uint32(b[4:])))
			if group := sharedHeadBytes + 1; int(end) > group && int(end) >= group+int(b[group-1])+appendHeadBytes {
				inner := b[group+int(b[group-1]) : end]
				heads := appendHeadBytes + uint64(binary.LittleEndian.Uint32(inner[44:])) +
					entry.HeadBytes*uint64(binary.LittleEndian.Uint32(inner[40:]))
				covered := inner[4:min(uint64(len(inner)), heads)]
				binary.LittleEndian.PutUint32(inner, crc32.Checksum(covered, castagnoli))
			}
			binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:end], castagnoli))
		}
		allocs.Frugal(t, b, func() {
			m, err := readTestShared(b)
			if err != nil {
				return
			}
			if k, group, a, err := parseSharedRequest(m.body); err == nil {
				again, ok := appendSharedRequest(nil, k, group, a)
				if !ok || !bytes.Equal(again, m.body) {
					t.Errorf("%x was read as %s, %+v", m.body, group, a)
				}
			}
			var resp raft.AppendEntriesResponse
			answered, err, corrupt := parseSharedAnswer(m.body, &resp)
			if answered && corrupt == nil && err == nil {
				if again, ok := appendSharedAnswer(nil, &resp, nil); !ok || !bytes.Equal(again, m.body) {
					t.Errorf("%x was read as the answer %+v", m.body, resp)
				}
			}
		})
	})
}
