package shard

import (
	"bytes"
	"errors"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/wire"
)

func (r *replica) mark() Digest {
	r.tb.Helper()
	r.apply(wire.ProofEntry(r.header(), &wire.Proof{Step: wire.ProofMark}))
	d, ok := r.Rounds.At(r.index)
	if now := r.digest(); !ok || d != now {
		r.tb.Fatalf("noted %+v (%v) at the mark, the digest is %+v", d, ok, now)
	}
	return d
}

func (r *replica) agree(d Digest) *Applied {
	r.tb.Helper()
	return r.apply(wire.ProofEntry(r.header(),
		&wire.Proof{Step: wire.ProofAgreed, Mark: d.Index, Rows: d.Rows, Digest: d.Sum}))
}

func pullOne(r *replica) error {
	_, _, err := r.Pull(payloadOf(rows{schema: markTable(), flags: wire.FlagNoValues, keys: []rowraft.Key{1}}), false, 0,
		func(n int) []byte { return make([]byte, n) })
	return err
}

func pushedReplica(tb testing.TB) *replica {
	r := newReplica(tb, Config{})
	r.create(markTable())
	r.mustOpen(1, 1)
	pushOnes(r, 1, 1, 2, 3)
	return r
}

// TestAFencedReplicaServesNothing: a fenced replica refuses pull, digest, snapshot, entry and restore, with
// a code that makes the client try another replica.
func TestAFencedReplicaServesNothing(t *testing.T) {
	r := pushedReplica(t)
	before := r.snapshot()
	writing, err := r.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer writing.Release()
	good := r.mark()
	other := good
	other.Sum[0] ^= 1
	pushOnes(r, 2, 4)
	testutil.WantCode(t, r.agree(other).Parts[0].Err, rowraft.CodeCorrupt)

	fenced := r.Fenced()
	if fenced == nil || fenced.Own != good || fenced.Majority != other || fenced.AppliedTo != r.index {
		t.Fatalf("fenced: %+v, want own %+v, majority %+v", fenced, good, other)
	}
	index := r.AppliedIndex()
	refused := map[string]error{
		"pull":     pullOne(r),
		"digest":   second(r.Digest()),
		"snapshot": second(r.Snapshot()),
		"mark":     second(r.ExpectMark(wire.MarkID{1})),
		"writing":  second(writing.WriteTo(new(bytes.Buffer))),
		"restore":  r.Restore(bytes.NewReader(before)),
	}
	applied, _ := r.Apply(r.index+1, wire.ProofEntry(r.header(), &wire.Proof{Step: wire.ProofMark})).(error)
	refused["entry"] = applied
	for what, err := range refused {
		if rowraft.CodeOf(err) != rowraft.CodeFenced || !rowraft.CodeOf(err).Retryable() ||
			!rowraft.CodeOf(err).MaybeApplied() {
			t.Errorf("%s: %v, want Fenced", what, err)
		}
	}
	if errors.As(applied, new(*FatalError)) || r.AppliedIndex() != index {
		t.Errorf("an entry after the fence: %v at index %d, want none applied after %d", applied, r.AppliedIndex(), index)
	}
}

// TestOnlyRecordedDigestsAreCompared: a replica that was restored, or that has applied too many marks
// since, is not fenced. A digest of another epoch fences no replica.
func TestOnlyRecordedDigestsAreCompared(t *testing.T) {
	wrong := func(d Digest) Digest { d.Rows++; return d }
	for _, tc := range []struct {
		name string
		then func(r *replica)
	}{
		{"a snapshot has replaced the rows", func(r *replica) {
			if err := r.Restore(bytes.NewReader(r.snapshot())); err != nil {
				t.Fatal(err)
			}
		}},
		{"64 marks came after", func(r *replica) {
			for range maxDigests {
				r.mark()
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := pushedReplica(t)
			d := r.mark()
			tc.then(r)
			if err := r.agree(wrong(d)).Parts[0].Err; err != nil || r.Fenced() != nil {
				t.Errorf("fenced without a recorded digest: %v", err)
			}
		})
	}
	t.Run("another epoch", func(t *testing.T) {
		r := pushedReplica(t)
		d := wrong(r.mark())
		h := r.header()
		h.Epoch++
		a := r.apply(wire.ProofEntry(h, &wire.Proof{Step: wire.ProofAgreed, Mark: d.Index, Rows: d.Rows, Digest: d.Sum}))
		testutil.WantCode(t, a.Parts[0].Err, rowraft.CodeSessionExpired)
		if r.Fenced() != nil {
			t.Error("fenced by an entry of another epoch")
		}
	})
	t.Run("the oldest of 64", func(t *testing.T) {
		r := pushedReplica(t)
		d := r.mark()
		for range maxDigests - 1 {
			r.mark()
		}
		testutil.WantCode(t, r.agree(wrong(d)).Parts[0].Err, rowraft.CodeCorrupt)
	})
}

// TestNoMajorityEnds: a shard without a majority stays so until a majority agrees, or a snapshot replaces
// the rows. The state does not change.
func TestNoMajorityEnds(t *testing.T) {
	r := pushedReplica(t)
	before := r.digest()
	divide := func() {
		d := r.mark()
		r.apply(wire.ProofEntry(r.header(), &wire.Proof{Step: wire.ProofDivided, Mark: d.Index}))
		if r.Rounds.NoMajority() != d.Index || r.Rounds.AgreedAt() == d.Index {
			t.Fatalf("no majority at %d, agreed at %d; want no majority at %d", r.Rounds.NoMajority(), r.Rounds.AgreedAt(),
				d.Index)
		}
	}
	divide()
	d := r.mark()
	r.agree(d)
	if r.Rounds.NoMajority() != 0 || r.Rounds.AgreedAt() != d.Index {
		t.Errorf("after agreement at %d: no majority at %d, agreed at %d", d.Index, r.Rounds.NoMajority(),
			r.Rounds.AgreedAt())
	}
	divide()
	if err := r.Restore(bytes.NewReader(r.snapshot())); err != nil || r.Rounds.NoMajority() != 0 ||
		r.Rounds.AgreedAt() != 0 {
		t.Errorf("after a restore (%v): no majority at %d, agreed at %d", err, r.Rounds.NoMajority(), r.Rounds.AgreedAt())
	}
	if after := r.digest(); after.Sum != before.Sum || after.Rows != before.Rows {
		t.Errorf("proof entries changed the rows: %+v to %+v", before, after)
	}
}
