package meta

import (
	"fmt"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func shardsFromProto(in []*rowraftv1.Shard) []clustermap.Shard {
	out := make([]clustermap.Shard, len(in))
	for i, s := range in {
		out[i] = rpc.ShardFromProto(s)
	}
	return out
}

// ShardsToProto converts shards for a command.
func ShardsToProto(in []clustermap.Shard) []*rowraftv1.Shard {
	out := make([]*rowraftv1.Shard, len(in))
	for i, s := range in {
		out[i] = rpc.ShardToProto(s)
	}
	return out
}

// describe describes the shape of a table for messages. It omits what the kinds of the table do not use.
func describe(s rowraft.Schema) string {
	i := s.Initializer
	init := i.Kind.String()
	switch i.Kind {
	case rowraft.InitUniform:
		init += fmt.Sprintf(" [%v, %v)", i.A, i.B)
	case rowraft.InitNormal:
		init += fmt.Sprintf(" mean %v deviation %v", i.A, i.B)
	}
	text := fmt.Sprintf("%s, dim %d, initializer %s (seed %d), optimizer %s", s.Kind, s.Dim, init, i.Seed, s.Optimizer)
	if t := s.StorageType(); t != rowraft.Float32 {
		text += ", storage " + t.String()
	}
	if s.SumPushes {
		text += ", sums pushes"
	}
	if s.Admission != (rowraft.Admission{}) {
		text += ", admission " + s.Admission.String()
	}
	if s.Expire != 0 {
		text += fmt.Sprintf(", expiry %d ticks", s.Expire)
	}
	if s.Memory != 0 {
		text += fmt.Sprintf(", tiered with %d bytes of memory", s.Memory)
	}
	if c := s.Capacity; c.Rows != 0 {
		text += fmt.Sprintf(", capacity %d rows evict %s", c.Rows, c.Evict)
	}
	return text
}

// HasTable reports whether a table with this id is in the list.
func HasTable(tables []rowraft.Schema, id rowraft.TableID) bool {
	return slices.ContainsFunc(tables, func(t rowraft.Schema) bool { return t.ID == id })
}

// idOf returns the id of the table of this name in the list; 0 if there is none.
func idOf(tables []rowraft.Schema, name string) rowraft.TableID {
	for _, t := range tables {
		if t.Name == name {
			return t.ID
		}
	}
	return 0
}
