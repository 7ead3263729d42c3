package replica

import (
	"os"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/node/admit"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// leading returns a host with the only replica of a shard, which leads it, and a table of the shard.
func leading(t *testing.T, limits admit.Limits) (*Host, *replica, rowraft.Schema) {
	t.Helper()
	if err := limits.SetDefaults(os.DirFS("/")); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, Options{Admission: admit.New(limits)})
	follow(t, h, clustermap.Shard{Replicas: list("m")})
	r := h.replica(0)
	testutil.Eventually(t, "the replica leads", func() bool { return r.leading.Load() != 0 })
	table := rowraft.Schema{
		ID: 7, Name: "emb", Kind: rowraft.Sparse, Dim: 4,
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
	}
	if _, err := r.ensureTable(t.Context(), &table, 0); err != nil {
		t.Fatal(err)
	}
	return h, r, table
}

// A push that waits for a new leader to begin uses memory: without room for it, the server refuses it at
// once.
func TestPushesThatWaitForTheLeadCount(t *testing.T) {
	_, r, _ := leading(t, admit.Limits{InFlight: 1 << 20, Client: 1 << 10})
	push := func() error {
		_, _, err := r.write(t.Context(), wire.Part{Op: wire.OpPush, Payload: rpc.Pool.Bytes(100)})
		return err
	}
	held, err := r.admit.Admit(t.Context(), 0, admit.Push, 1000)
	if err != nil {
		t.Fatal(err)
	}
	term := r.leading.Swap(0)
	if err := push(); rowraft.CodeOf(err) != rowraft.CodeOverloaded {
		t.Errorf("a push to a leader that has not begun, and has no room: %v", err)
	}
	held.Release()
	if err := push(); err == nil { // it waits for its turn; then no caller waits for it
		t.Error("a push of no session is taken")
	}
	r.leading.CompareAndSwap(0, term)
	if used := r.admit.InFlight(admit.Push); used != 0 {
		t.Errorf("%d bytes stay counted", used)
	}
}

// TestPullsThatWaitCount: a pull that waits for a leader to begin uses memory for its keys and for the
// requested reply. Without room for both, the server refuses it at once. The admission gets the bytes of a
// waiting pull back in the end. The server also refuses at once a pull that waits for an entry that does
// not exist.
func TestPullsThatWaitCount(t *testing.T) {
	h, r, table := leading(t, admit.Limits{InFlight: 1 << 20, Client: 4 << 10})
	s := &tableService{h: h}
	pull := func(minIndex uint64) error {
		const keys = 100 // 800 bytes, and 1600 bytes of weights in the reply
		seg := wire.Segment{Table: table.ID, N: keys, Dim: 4, DType: rowraft.Float32, Flags: wire.FlagNoValues}
		payload := rpc.Pool.Bytes(seg.Size())
		seg.Put(payload)
		reply, err := s.Pull(t.Context(), &rowraftv1.PullRequest{MapVersion: anyMapVersion, MinIndex: minIndex,
			Payload: payload})
		rpc.Pool.Release(reply.GetPayload())
		return err
	}
	if err := pull(0); err != nil {
		t.Fatalf("a pull with room for it: %v", err)
	}

	term := r.leading.Swap(0) // pulls wait
	waits := make(chan error, 1)
	go func() { waits <- pull(0) }()
	stillWaits := func() {
		select {
		case <-waits: // it has waited for one second
			go func() { waits <- pull(0) }()
		default:
		}
	}
	testutil.Eventually(t, "a pull that waits is counted, with its reply", func() bool {
		stillWaits()
		return r.admit.InFlight(admit.Pull) > 2400
	})
	testutil.Eventually(t, "a pull next to one that waits has no room", func() bool {
		stillWaits()
		return rowraft.CodeOf(pull(0)) == rowraft.CodeOverloaded
	})
	r.leading.CompareAndSwap(0, term)
	<-waits
	testutil.Eventually(t, "all is given back", func() bool { return r.admit.InFlight(admit.Pull) == 0 })

	// Each of these calls would wait for a second.
	for range 500 {
		if err := pull(1 << 62); rowraft.CodeOf(err) != rowraft.CodeTooStale {
			t.Fatalf("a pull that wants entry 2^62: %v, want TooStale", err)
		}
	}
}
