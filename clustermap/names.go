package clustermap

import (
	"regexp"
	"strings"

	"github.com/rowraft/rowraft"
)

// uuidPattern matches the ids of servers and replicas.
var uuidPattern = regexp.MustCompile(`\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`)

// WithNames replaces ids in a text for people: the id of a server becomes its name, and the id of a replica becomes its
// first eight characters and the name of its server, as in "7f3be18a@n2". Other ids stay. m may be nil.
func (m *Map) WithNames(text string) string {
	if m == nil || strings.Count(text, "-") < 4 {
		return text
	}
	return uuidPattern.ReplaceAllStringFunc(text, func(id string) string {
		if n, ok := m.Node(rowraft.NodeID(id)); ok && n.Name != "" {
			return n.Name
		}
		if node, ok := m.nodeOfReplica(rowraft.ReplicaID(id)); ok {
			return id[:8] + "@" + m.NameOf(node)
		}
		return id
	})
}

// nodeOfReplica returns the server on which a replica of a shard is, or was until it was removed.
func (m *Map) nodeOfReplica(id rowraft.ReplicaID) (rowraft.NodeID, bool) {
	for i := range m.Shards {
		sh := &m.Shards[i]
		for _, list := range [][]Replica{sh.Replicas, sh.Learners} {
			for _, r := range list {
				if r.ID == id {
					return r.Node, true
				}
			}
		}
		for _, r := range sh.Removed {
			if r.ID == id {
				return r.Node, true
			}
		}
	}
	return "", false
}
