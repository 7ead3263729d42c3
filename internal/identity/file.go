package identity

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"slices"

	"github.com/google/uuid"

	"github.com/rowraft/rowraft"
)

// Member is a founder of the scheduler: its node and its addresses at that time.
type Member struct {
	Node     rowraft.NodeID `json:"node_id"`
	Name     string         `json:"name,omitempty"`
	Addr     string         `json:"addr"`      // host:port of the gRPC services
	PeerAddr string         `json:"peer_addr"` // host:port of the Raft groups
}

// MetaReplica returns the member's replica id in the scheduler.
func (m Member) MetaReplica() rowraft.ReplicaID { return MetaReplicaOf(m.Node) }

// Identity is the ids that a data directory got at its creation, and the cluster that it joined.
type Identity struct {
	Node        rowraft.NodeID
	Name        string            // the server's name in the cluster; empty before its first registration
	MetaReplica rowraft.ReplicaID // replica id in the scheduler, if it is a founder
	Cluster     rowraft.ClusterID // empty until the cluster is formed or joined
	Founders    []Member          // founders of the scheduler, by node id; empty while Cluster is empty
}

// Founder reports whether the node is one of the first members of the scheduler.
func (id Identity) Founder() bool {
	_, is := id.FindFounder(id.Node)
	return is
}

// FindFounder returns the founder with the node id.
func (id Identity) FindFounder(node rowraft.NodeID) (Member, bool) {
	i := slices.IndexFunc(id.Founders, func(m Member) bool { return m.Node == node })
	if i < 0 {
		return Member{}, false
	}
	return id.Founders[i], true
}

// MetaReplicaOf derives the id of a founder's replica in the scheduler from its node id, so that the
// founders know each other's ids. The id is unique because a node founds at most one cluster.
func MetaReplicaOf(node rowraft.NodeID) rowraft.ReplicaID {
	return rowraft.ReplicaID(uuid.NewSHA1(uuid.NameSpaceOID, []byte("rowraft meta replica of "+string(node))).String())
}

// Version is the newest format of the identity file that this binary reads.
const Version = 1

const (
	fileName   = "IDENTITY"
	fileFormat = "rowraft-identity"
)

// fileBody is the JSON content of the file. Checksum covers the encoding of the other fields.
type fileBody struct {
	Format      string   `json:"format"`
	Version     int      `json:"version"`
	NodeID      string   `json:"node_id"`
	Name        string   `json:"name,omitempty"`
	MetaReplica string   `json:"meta_replica_id"`
	ClusterID   string   `json:"cluster_id"`
	Founders    []Member `json:"founders"`
	Checksum    string   `json:"crc32c"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (b fileBody) sum() (string, error) {
	b.Checksum = ""
	raw, err := json.Marshal(b)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%08x", crc32.Checksum(raw, castagnoli)), nil
}

func encode(id Identity) ([]byte, error) {
	b := fileBody{
		Format: fileFormat, Version: Version, NodeID: string(id.Node), Name: id.Name, MetaReplica: string(id.MetaReplica),
		ClusterID: string(id.Cluster), Founders: id.Founders,
	}
	var err error
	if b.Checksum, err = b.sum(); err != nil {
		return nil, err
	}
	raw, err := json.MarshalIndent(b, "", "  ")
	return append(raw, '\n'), err
}

// decode parses the result of encode. path is for the error text.
func decode(raw []byte, path string) (Identity, error) {
	var head struct {
		Format  string `json:"format"`
		Version int    `json:"version"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return Identity{}, rowraft.Errorf(rowraft.CodeCorrupt, "%s: not an identity file: %w", path, err)
	}
	if head.Format != fileFormat {
		return Identity{}, rowraft.Errorf(rowraft.CodeCorrupt, "%s: format %q, want %q", path, head.Format, fileFormat)
	}
	if head.Version > Version {
		return Identity{}, rowraft.Errorf(rowraft.CodeVersionTooNew,
			"%s: version %d, this binary reads up to %d: upgrade it", path, head.Version, Version)
	}
	var b fileBody
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&b); err != nil {
		return Identity{}, rowraft.Errorf(rowraft.CodeCorrupt, "%s: %w", path, err)
	}
	want, err := b.sum()
	if err != nil {
		return Identity{}, err
	}
	if b.Version < 1 || b.Checksum != want {
		return Identity{}, rowraft.Errorf(rowraft.CodeCorrupt,
			"%s: checksum %q, the content gives %q: the file was changed or damaged", path, b.Checksum, want)
	}
	return Identity{
		Node: rowraft.NodeID(b.NodeID), Name: b.Name, MetaReplica: rowraft.ReplicaID(b.MetaReplica),
		Cluster: rowraft.ClusterID(b.ClusterID), Founders: b.Founders,
	}, nil
}

func path(dir string) string { return filepath.Join(dir, fileName) }
