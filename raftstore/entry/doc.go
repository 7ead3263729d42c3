// Package entry is the form of one entry of a Raft log, on the disk and between servers: a head of fixed size, the
// data, and a seal over both.
//
// The seal travels with the entry in raft.Log.Extensions, from the proposal to the machine of each replica
// (docs/formats/peer.md): u32 crc32c of the data, then u32 crc32c of index, term, type, length and the first. Neither
// log backend checks what it reads back, and a flipped type would leave an entry out.
package entry
