package wire

import (
	"bytes"
	"testing"

	"github.com/rowraft/rowraft"
)

func TestGoldenProofs(t *testing.T) {
	digest := [16]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	for file, want := range map[string]Proof{
		"entry_proof_mark.hex":    {Step: ProofMark},
		"entry_proof_agreed.hex":  {Step: ProofAgreed, Mark: 0x201, Rows: 3, Digest: digest},
		"entry_proof_divided.hex": {Step: ProofDivided, Mark: 0x201},
	} {
		t.Run(file, func(t *testing.T) {
			entry := golden(t, file)
			h, body, err := ParseEntryHeader(entry)
			if err != nil || h != (EntryHeader{Kind: EntryProof, Version: 1, LogTime: 5, Epoch: 2}) {
				t.Fatalf("header %+v, %v", h, err)
			}
			got, err := ParseProof(body)
			if err != nil || got != want {
				t.Errorf("proof %+v, %v; want %+v", got, err, want)
			}
			if again := ProofEntry(h, &got); !bytes.Equal(again, entry) {
				t.Errorf("wrote %x, want %x", again, entry)
			}
			step, zero := bytes.Clone(body), bytes.Clone(body)
			step[0], zero[3] = 4, 1
			for _, bad := range [][]byte{nil, body[:len(body)-1], append(bytes.Clone(body), 0), step, zero} {
				if _, err := ParseProof(bad); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
					t.Errorf("%x: %v, want Corrupt", bad, err)
				}
			}
		})
	}
}
