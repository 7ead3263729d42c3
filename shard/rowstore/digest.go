package rowstore

import "github.com/rowraft/rowraft/shard/rowstore/digest"

// Digest is the sum of row hashes.
type Digest = digest.Digest

// DigestOf is the inverse of Digest.Bytes.
func DigestOf(b [16]byte) Digest { return digest.Of(b) }

// Digest returns the digest of all rows.
func (t *Table) Digest() (d Digest) {
	for s := range t.index.all() {
		d = d.Add(t.index.slot(s).digest)
	}
	return d
}
