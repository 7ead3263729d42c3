package demo

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// audit holds the audit rows: row s, dimension r, is the number of pushes of trainer r that shard s has applied.
type audit struct {
	Lost, Duplicated int64
}

// checkAudit compares the audit rows with the acknowledged pushes of each trainer. Each push touched every shard.
func checkAudit(ctx context.Context, c *client.Client, table string, acknowledged []int64) (audit, error) {
	var a audit
	t, err := c.Table(ctx, table)
	if err != nil {
		return a, err
	}
	m := c.Map()
	keys := make([]rowraft.Key, len(m.Shards))
	for s := range m.Shards {
		if keys[s], err = m.KeyInShard(t.Schema().ID, rowraft.ShardID(s)); err != nil {
			return a, err
		}
	}
	rows := make([]float32, len(keys)*t.Dim())
	if err := t.Pull(ctx, keys, rows); err != nil {
		return a, fmt.Errorf("audit rows: %w", err)
	}
	for s := range keys {
		for rank, want := range acknowledged {
			got := int64(rows[s*t.Dim()+rank])
			a.Lost += max(want-got, 0)
			a.Duplicated += max(got-want, 0)
		}
	}
	return a, nil
}

// replicaCount counts the replicas: Same have the digest of their shard's leader, of All.
type replicaCount struct{ Same, All int }

// checkReplicas compares the digests of every shard's replicas at one index. There are no more writes, so all replicas
// reach the same index.
func checkReplicas(ctx context.Context, c *client.Client, tls rpc.TLSFiles) (replicaCount, error) {
	var n replicaCount
	conf, err := tls.Open(nil)
	if err != nil {
		return n, err
	}
	pool := route.NewPool(conf, nil, 1)
	defer pool.Close()
	m := c.Map()
	for _, shard := range m.Shards {
		digests, err := shardDigests(ctx, m, shard.ID, func(addr string, index uint64) (*rowraftv1.DigestReply, error) {
			conn, err := pool.Get(addr)
			if err != nil {
				return nil, err
			}
			return rowraftv1.NewReplicasClient(conn).Digest(ctx, &rowraftv1.DigestRequest{Shard: uint32(shard.ID),
				MinIndex: index})
		})
		if err != nil {
			return n, fmt.Errorf("digest of shard %d: %w", shard.ID, err)
		}
		n.All += len(digests)
		for _, d := range digests {
			if d == digests[0] {
				n.Same++
			}
		}
	}
	return n, nil
}

// shardDigests asks every replica for its digest, and repeats that until all answer for one index. It also repeats
// after a temporary error: on a busy machine a server may be suspended for longer than a connection waits.
func shardDigests(ctx context.Context, m *clustermap.Map, shard rowraft.ShardID,
	ask func(addr string, index uint64) (*rowraftv1.DigestReply, error)) ([]string, error) {
	var b route.Backoff
	for index := uint64(0); ; {
		out := make([]string, len(m.Shards[shard].Replicas))
		same := index > 0 // the first round only finds the index
		var late error
		for i, r := range m.Shards[shard].Replicas {
			node, _ := m.Node(r.Node)
			d, err := ask(node.Addr, index)
			if err != nil {
				err = fmt.Errorf("replica on %s: %w", node.Name, err)
			}
			if err != nil && (route.On(route.Control, err) == route.Return || rowraft.CodeOf(err) == rowraft.CodeFenced) {
				return nil, err
			}
			if err != nil {
				same, late = false, err
				continue
			}
			same = same && d.AppliedIndex == index
			index = max(index, d.AppliedIndex)
			out[i] = hex.EncodeToString(d.Digest)
		}
		if same {
			return out, nil
		}
		if err := b.Wait(ctx, 0); err != nil {
			return nil, fmt.Errorf("the replicas did not come to one index: %w", errors.Join(err, late))
		}
	}
}
