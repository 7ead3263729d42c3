// Package frame is the envelope of raftstore's small files: a checksum around a body of any kind.
//
//	offset  size  field
//	0       8     magic, which names the kind of file
//	8       2     u16 version of the body
//	10      2     zero
//	12      4     u32 length of the body
//	16      n     body
//	16+n    4     u32 crc32c of everything before
//
// The magic, the length and the checksum keep their places in every version. So Open checks the checksum before the
// version: a flipped bit must not look like a file of a later binary. All integers are little-endian.
package frame
