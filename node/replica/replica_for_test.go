package replica

import (
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
)

// A server that restarts follows, for a moment, the map from before its shards. A correct call must get a
// retryable error then, not one that says that the call is wrong.
func TestAMapWithoutShardsRefusesForAMoment(t *testing.T) {
	mapOf := func(version rowraft.MapVersion, shards int) *clustermap.Map {
		list := make([]clustermap.Shard, shards)
		for i := range list {
			list[i].ID = rowraft.ShardID(i)
		}
		m, err := clustermap.New(clustermap.Map{Version: version, SlotsVersion: version, Shards: list}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, tc := range []struct {
		name    string
		cluster *clustermap.Map // that the server follows
		shard   uint32
		version uint64 // of the call
		want    rowraft.Code
	}{
		{"no map", nil, 0, 4, rowraft.CodeStarting},
		{"a map from before the shards were made", mapOf(3, 0), 3, 4, rowraft.CodeStarting},
		{"the same, for a call that names no map", mapOf(3, 0), 3, anyMapVersion, rowraft.CodeStarting},
		{"a newer map than the call's", mapOf(5, 4), 3, 4, rowraft.CodeWrongShard},
		{"the same map, and no such shard", mapOf(4, 4), 4, 4, rowraft.CodeInvalidArgument},
		{"no such shard, for a call that names no map", mapOf(4, 4), 4, anyMapVersion, rowraft.CodeInvalidArgument},
		{"a shard that is elsewhere", mapOf(4, 4), 3, 4, rowraft.CodeNotLeader},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := New(Options{})
			if tc.cluster != nil {
				h.cluster.Store(tc.cluster)
			}
			if _, err := h.replicaFor(tc.shard, tc.version, 0); rowraft.CodeOf(err) != tc.want {
				t.Errorf("replicaFor(shard %d, map %d) = %v, want code %v", tc.shard, tc.version, err, tc.want)
			}
		})
	}
}
