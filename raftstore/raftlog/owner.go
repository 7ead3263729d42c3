package raftlog

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/rowraft/rowraft"
)

// Owner is the replica that a log belongs to. Every file of a log contains it: without it, files of another replica,
// which have the same names and correct checksums, could not be told apart.
type Owner struct {
	Cluster rowraft.ClusterID
	Node    rowraft.NodeID
	Group   string
	Replica rowraft.ReplicaID
}

func (o Owner) String() string {
	return fmt.Sprintf("replica %s of group %s on server %s of cluster %s", o.Replica, o.Group, o.Node, o.Cluster)
}

// MaxNameBytes is the length of the longest name in an Owner.
const MaxNameBytes = 64

// maxOwnerBytes is the length of the longest encoding.
const maxOwnerBytes = 4 * (1 + MaxNameBytes)

// encode returns the four names, each after a byte with its length.
func (o Owner) encode() []byte {
	var b []byte
	for _, s := range []string{string(o.Cluster), string(o.Node), o.Group, string(o.Replica)} {
		b = append(append(b, byte(len(s))), s...)
	}
	return b
}

// parseOwner decodes an owner from the front of b.
func parseOwner(b []byte) (o Owner, rest []byte, ok bool) {
	var names [4]string
	for i := range names {
		if len(b) == 0 || b[0] > MaxNameBytes || int(b[0]) > len(b)-1 {
			return Owner{}, nil, false
		}
		names[i], b = string(b[1:1+b[0]]), b[1+b[0]:]
	}
	return Owner{rowraft.ClusterID(names[0]), rowraft.NodeID(names[1]), names[2], rowraft.ReplicaID(names[3])}, b, true
}

// tag returns the 64 bits that identify o in each batch of a log.
func (o Owner) tag() uint64 {
	sum := sha256.Sum256(o.encode())
	return binary.LittleEndian.Uint64(sum[:])
}

// check returns an error with CodeIdentity if file, which contains the owner found, does not belong to o.
func (o Owner) check(file string, found Owner) error {
	if found == o {
		return nil
	}
	return rowraft.Errorf(rowraft.CodeIdentity, "%s belongs to %s; it is opened as the log of %s: the files of two logs "+
		"were exchanged, or copied; put each back in its place, or remove the replica from its group and add a new one",
		file, found, o)
}
