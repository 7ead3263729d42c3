package replica

import (
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/node/packer"
	"github.com/rowraft/rowraft/wire"
)

// TestNothingPassesTheVersionCheck: while a server of the cluster does not understand a version, a replica logs
// no entry of it, whatever logs it: a batch of pushes, a step, or an operation.
func TestNothingPassesTheVersionCheck(t *testing.T) {
	next, forget := wire.InventVersion()
	t.Cleanup(forget) // after the host is closed
	h := newHost(t, Options{MayLog: func(_ rowraft.ShardID, v rowraft.FormatVersion) error {
		if v < next {
			return nil
		}
		return rowraft.Errorf(rowraft.CodeVersionTooNew, "version %d", v)
	}})
	follow(t, h, clustermap.Shard{Replicas: list("m")})
	r := h.replica(0)
	testutil.Eventually(t, "the replica leads", func() bool { return r.leading.Load() != 0 })
	for _, version := range []rowraft.FormatVersion{wire.FirstVersion, next} {
		refused := map[string]error{}
		header := func() wire.EntryHeader {
			h := r.header()
			h.Version = version
			return h
		}
		b := packer.New(r.group, header, nil, nil)
		done, err := b.Submit(t.Context(), wire.Part{Op: wire.OpPush}, nil)
		if err == nil {
			_, err = packer.Wait(t.Context(), done)
		}
		b.Close()
		refused["a batch"] = err
		if version == next { // apply cannot process this step
			_, err = r.result(t.Context(), r.group.Propose(wire.AppendStepEntry(nil, header(), &wire.Step{Step: 1})))
			refused["a step"] = err
		}
		_, err = r.propose(t.Context(), wire.DropTableEntry(header(), 12345))
		refused["an operation"] = err
		for what, err := range refused {
			if got := rowraft.CodeOf(err) == rowraft.CodeVersionTooNew; got != (version == next) {
				t.Errorf("%s of version %d: %v", what, version, err)
			}
		}
	}
}
