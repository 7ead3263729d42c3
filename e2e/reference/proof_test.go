package reference

import (
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

// TestMinorityIsFenced: what the majority had is judged by the reference as by a
// Machine: rows and digest must be those at the mark.
func TestMinorityIsFenced(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*wire.Proof)
		want   rowraft.Code
	}{
		{"the same", func(*wire.Proof) {}, rowraft.CodeUnknown},
		{"another digest", func(p *wire.Proof) { p.Digest[15] ^= 1 }, rowraft.CodeCorrupt},
		{"another number of rows", func(p *wire.Proof) { p.Rows++ }, rowraft.CodeCorrupt},
		{"a mark that was not noted", func(p *wire.Proof) { p.Mark++; p.Rows++ }, rowraft.CodeUnknown},
		{"divided", func(p *wire.Proof) { p.Step = wire.ProofDivided; p.Rows++ }, rowraft.CodeUnknown},
	} {
		t.Run(tc.name, func(t *testing.T) {
			own, err := shard.New(shard.Config{Shard: 6})
			if err != nil {
				t.Fatal(err)
			}
			defer own.Close()
			ref, index := New(6, 0, nil), rowraft.Index(0)
			apply := func(entry []byte) Answer {
				index++
				want, err := ref.Apply(index, entry)
				if err != nil {
					t.Fatal(err)
				}
				got, ok := own.Apply(index, entry).(*shard.Applied)
				if !ok || (Answer{rowraft.CodeOf(got.Parts[0].Err), got.Parts[0].Duplicate}) != want[0] {
					t.Fatalf("entry %d: the Machine says %+v, the reference %v", index, got, want)
				}
				return want[0]
			}
			h := wire.EntryHeader{Version: 1, Epoch: 1, LogTime: 3}
			apply(wire.CreateTableEntry(h, &smallTables[0]))
			apply(wire.OpenSessionEntry(h, wire.Opening{Client: clientID(1), Incarnation: 1}))
			push := func(seq rowraft.Seq) {
				apply(entryOf(h, wire.Part{Client: clientID(1), Incarnation: 1, Seq: seq, Op: wire.OpPush, Payload: payloadOf(
					rows{schema: smallTables[0], keys: []rowraft.Key{rowraft.Key(seq)}, values: []float32{1}})}))
			}
			push(1)
			apply(wire.ProofEntry(h, &wire.Proof{Step: wire.ProofMark}))
			sum, n := ref.Digest()
			proof := &wire.Proof{Step: wire.ProofAgreed, Mark: index, Rows: n, Digest: sum}
			push(2) // it is the rows at the mark that count
			tc.change(proof)
			if got := apply(wire.ProofEntry(h, proof)); got.Code != tc.want {
				t.Errorf("answer %v, want %v", got, tc.want)
			}
			_, refErr := ref.Apply(index+1, wire.ProofEntry(h, proof))
			ownErr, _ := own.Apply(index+1, wire.ProofEntry(h, proof)).(error)
			want := rowraft.CodeUnknown
			if tc.want == rowraft.CodeCorrupt {
				want = rowraft.CodeFenced
			}
			if rowraft.CodeOf(refErr) != want || rowraft.CodeOf(ownErr) != want {
				t.Errorf("the next entry: reference %v, Machine %v; want %v", refErr, ownErr, want)
			}
		})
	}
}
