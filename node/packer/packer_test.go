package packer

import (
	"context"
	"runtime"
	"slices"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

// sizes records the size of an entry and ends the packer: no future can be made here.
type sizes struct{ entry []int }

func (s *sizes) Propose(entry []byte) *raftstore.Future {
	s.entry = append(s.entry, len(entry))
	runtime.Goexit()
	return nil
}

func firstEpoch() wire.EntryHeader { return wire.EntryHeader{Epoch: 1} }

// Raft's limits count entries, so an entry is about half a MiB whatever the queue holds: 32 of them fill
// one AppendEntries.
func TestEntriesAreOfTheTargetSize(t *testing.T) {
	for _, partBytes := range []int{100, 64 << 10, 300 << 10, 1 << 20} {
		group := &sizes{}
		b := newIdle(group, firstEpoch)
		for range min(maxQueuedParts, 4<<20/partBytes) {
			if _, err := b.Submit(t.Context(), wire.Part{Payload: make([]byte, partBytes)}, nil); err != nil {
				t.Fatal(err)
			}
		}
		go b.pack()
		<-b.ahead // closed
		if len(group.entry) != 1 {
			t.Fatalf("parts of %d bytes: %d entries", partBytes, len(group.entry))
		}
		want := rowraft.TargetEntryBytes
		if partBytes > want {
			want = partBytes + 1<<10 // in an entry alone
		}
		if got := group.entry[0]; got > want || got < want/2 && partBytes >= 64<<10 {
			t.Errorf("parts of %d bytes make an entry of %d, want up to %d", partBytes, got, want)
		}
	}
	if 32*rowraft.TargetEntryBytes > 16<<20 {
		t.Errorf("32 entries of %d bytes do not fit an RPC of a second", rowraft.TargetEntryBytes)
	}
}

// A client without an answer in time sends the same number again while the first copy still waits for the
// log.
func TestPartsWhoseCallersLeftAreNotLogged(t *testing.T) {
	for _, stays := range []bool{false, true} {
		group := &sizes{}
		b := newIdle(group, firstEpoch)
		part := func() wire.Part { return wire.Part{Seq: 7, Payload: make([]byte, 1000)} }
		left, leave := context.WithCancel(t.Context())
		for range 5 {
			if _, err := b.Submit(left, part(), nil); err != nil {
				t.Fatal(err)
			}
		}
		leave()
		if stays {
			if _, err := b.Submit(t.Context(), part(), nil); err != nil {
				t.Fatal(err)
			}
		}
		ended := make(chan struct{})
		go func() { defer close(ended); b.pack() }()
		for b.queuedBytes() > 0 {
			runtime.Gosched()
		}
		close(b.stop)
		<-ended
		if got := b.linger.inside.Load(); got != int32(len(group.entry)) { // the part of the entry has no result
			t.Errorf("one caller stays: %v: %d parts are inside", stays, got)
		}
		want := 0
		if stays {
			last := part()
			want = wire.EntryHeaderSize + last.Size()
		}
		if got := slices.Concat(group.entry, []int{0})[0]; len(group.entry) > 1 || got != want {
			t.Errorf("the last caller stays: %v; entries of %v bytes, want one of %d", stays, group.entry, want)
		}
	}
}

func (b *Packer) queuedBytes() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.queued
}

// TestClosedPackerProposesNothing: the parts that wait in the queue end with CodeClosing.
func TestClosedPackerProposesNothing(t *testing.T) {
	k := newIdle(&sizes{}, firstEpoch)
	var results []<-chan shard.PartResult
	for range 2 {
		done, err := k.Submit(t.Context(), wire.Part{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		results = append(results, done)
	}
	k.closed = true
	if w := k.take(); w != nil {
		t.Fatal("a closed packer takes a part from its queue")
	}
	k.drain()
	for _, done := range results {
		select {
		case r := <-done:
			testutil.WantCode(t, r.Err, rowraft.CodeClosing)
		default:
			t.Fatal("a part of a closed packer has no result")
		}
	}
}
