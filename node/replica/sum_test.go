package replica

import (
	"encoding/binary"
	"sync/atomic"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/node/packer"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

// summing is a replica that leads, with a table that counts the pushes of each of 64 rows, and a packer whose entries
// the test holds back.
type summing struct {
	*replica
	k      *packer.Packer
	table  rowraft.Schema
	held   atomic.Bool
	waits  chan struct{} // an entry is being made while held
	resume chan struct{}
}

func newSumming(t *testing.T) *summing {
	h := newHost(t, Options{})
	follow(t, h, clustermap.Shard{Replicas: list("m")})
	s := &summing{replica: h.replica(0), waits: make(chan struct{}), resume: make(chan struct{}), table: rowraft.Schema{
		ID: 7, Name: "t", Kind: rowraft.Sparse, Dim: 4, Initializer: rowraft.Initializer{Kind: rowraft.InitZeros},
		Optimizer: rowraft.Optimizer{Kind: rowraft.Add}}}
	testutil.Eventually(t, "the replica leads", func() bool { return s.leading.Load() != 0 })
	if _, err := s.ensureTable(t.Context(), &s.table, 0); err != nil {
		t.Fatal(err)
	}
	for c := byte(0); c < 8; c++ {
		if _, err := s.openSession(t.Context(), wire.Opening{Client: rowraft.ClientID{c}, Incarnation: 1}); err != nil {
			t.Fatal(err)
		}
	}
	s.k = packer.New(s.group, func() wire.EntryHeader {
		if s.held.Load() {
			s.waits <- struct{}{}
			<-s.resume
		}
		return s.header()
	}, s.machine.Sums, nil)
	t.Cleanup(s.k.Close)
	return s
}

// push submits number seq of client c: 1 for each number of 64 rows.
func (s *summing) push(t *testing.T, c byte, seq rowraft.Seq) <-chan shard.PartResult {
	t.Helper()
	seg := wire.Segment{Table: s.table.ID, N: 64, Dim: s.table.Dim, DType: rowraft.Float32}
	p := wire.Part{Client: rowraft.ClientID{c}, Incarnation: 1, Seq: seq, Op: wire.OpPush,
		Payload: make([]byte, seg.Size())}
	body := seg.Put(p.Payload)
	for i := range seg.N {
		binary.LittleEndian.PutUint64(body.Keys[8*i:], uint64(i))
	}
	for i := range seg.N * seg.Dim {
		wire.PutFloats(body.Values[4*i:], rowraft.Float32, []float32{1})
	}
	done, err := s.k.Submit(t.Context(), p, nil)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// together makes the pushes of submit wait for the same entry.
func (s *summing) together(t *testing.T, submit func()) {
	t.Helper()
	s.held.Store(true)
	first := s.push(t, 0, 1) // its entry is made alone, and waits
	<-s.waits
	submit()
	s.held.Store(false)
	s.resume <- struct{}{}
	if r := <-first; r.Err != nil || r.Duplicate {
		t.Fatalf("%+v", r)
	}
}

// counted returns the number of pushes that the rows have.
func (s *summing) counted(t *testing.T) float32 {
	t.Helper()
	ask := wire.Segment{Table: s.table.ID, N: 64, Dim: 4, DType: rowraft.Float32, Flags: wire.FlagNoValues}
	payload := make([]byte, ask.Size())
	body := ask.Put(payload)
	for i := range ask.N {
		binary.LittleEndian.PutUint64(body.Keys[8*i:], uint64(i))
	}
	reply, _, err := s.machine.Pull(payload, false, 0, func(n int) []byte { return make([]byte, n) })
	if err != nil {
		t.Fatal(err)
	}
	_, body, _, err = wire.ParseSegment(reply)
	if err != nil {
		t.Fatal(err)
	}
	numbers := make([]float32, 64*4)
	wire.GetFloats(numbers, rowraft.Float32, body.Values)
	for _, n := range numbers {
		if n != numbers[0] {
			t.Fatalf("rows have different counts: %v", numbers)
		}
	}
	return numbers[0]
}

// TestWaitingPushesAreSummed: eight pushes of the same keys that wait for one entry take the room of one, and each is
// applied.
func TestWaitingPushesAreSummed(t *testing.T) {
	s := newSumming(t)
	var results []<-chan shard.PartResult
	s.together(t, func() {
		for c := byte(1); c < 8; c++ {
			results = append(results, s.push(t, c, 1))
		}
	})
	for _, done := range results {
		if r := <-done; r.Err != nil || r.Duplicate {
			t.Errorf("%+v", r)
		}
	}
	if got := s.counted(t); got != 8 {
		t.Errorf("%v pushes are in the rows, want 8", got)
	}
	sums := s.k.Sums()
	if sums.Pushes.Load() != 7 || sums.Refused.Load() != 0 || sums.SavedBytes.Load() < 6*64*4*4 {
		t.Errorf("%d pushes summed, %d sums refused, %d bytes saved", sums.Pushes.Load(), sums.Refused.Load(),
			sums.SavedBytes.Load())
	}
}

// TestARefusedSumIsLoggedOneByOne: copies of pushes that were applied meanwhile, and a push of a session that has
// ended, are in a sum with new pushes. Each gets the answer that it would have got alone.
func TestARefusedSumIsLoggedOneByOne(t *testing.T) {
	s := newSumming(t)
	for c := byte(1); c < 3; c++ {
		if r := <-s.push(t, c, 1); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	if err := s.closeSession(t.Context(), rowraft.ClientID{5}, 1); err != nil {
		t.Fatal(err)
	}
	var results []<-chan shard.PartResult
	s.together(t, func() {
		for c := byte(1); c < 8; c++ {
			results = append(results, s.push(t, c, 1))
		}
	})
	for i, done := range results {
		r, c := <-done, i+1
		switch {
		case c == 5:
			testutil.WantCode(t, r.Err, rowraft.CodeSessionExpired)
		case r.Err != nil || r.Duplicate != (c < 3):
			t.Errorf("client %d: %+v", c, r)
		}
	}
	if got := s.counted(t); got != 7 { // of clients 0 to 7, without 5
		t.Errorf("%v pushes are in the rows, want 7", got)
	}
	if sums := s.k.Sums(); sums.Refused.Load() != 1 || sums.Pushes.Load() != 0 {
		t.Errorf("%d sums refused, %d pushes summed", sums.Refused.Load(), sums.Pushes.Load())
	}
}
