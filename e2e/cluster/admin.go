package cluster

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// Replica is what a server says of one of its replicas.
type Replica struct {
	Shard           rowraft.ShardID
	ID              string
	Leads           bool
	Term            rowraft.Term
	Commit, Applied rowraft.Index
	Rows            uint64
	Proved, Divided rowraft.Index // newest marks at which it had the rows of the majority; at which there was none
	Fenced          string        // why it is, "" if it is not
}

// Admins are connections to the servers, by name, past all that is done to the
// network.
type Admins map[string]*grpc.ClientConn

// Replicas asks a server for its replicas.
func (a Admins) Replicas(ctx context.Context, name string, patience time.Duration) ([]Replica, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	reply, err := rowraftv1.NewReplicasClient(a[name]).NodeStatus(ctx, &rowraftv1.NodeStatusRequest{})
	if err != nil {
		return nil, fmt.Errorf("status of server %s: %w", name, err)
	}
	var out []Replica
	for _, r := range reply.Replicas {
		out = append(out, Replica{
			Shard: rowraft.ShardID(r.Shard), ID: r.ReplicaId, Leads: r.Role == "leader", Term: rowraft.Term(r.Term),
			Commit: rowraft.Index(r.CommitIndex), Applied: rowraft.Index(r.AppliedIndex), Rows: r.Rows,
			Proved: rowraft.Index(r.ProvedIndex), Divided: rowraft.Index(r.DividedIndex), Fenced: r.Fenced,
		})
	}
	return out, nil
}

// Digest is the rows of one replica at one index.
type Digest struct {
	Index rowraft.Index
	Sum   string // hexadecimal
	Rows  uint64
}

// Digest returns the digest of a replica once it has applied atLeast.
func (a Admins) Digest(ctx context.Context, name string, shard rowraft.ShardID, atLeast rowraft.Index,
	patience time.Duration) (Digest, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	reply, err := rowraftv1.NewReplicasClient(a[name]).Digest(ctx,
		&rowraftv1.DigestRequest{Shard: uint32(shard), MinIndex: uint64(atLeast)})
	if err != nil {
		return Digest{}, fmt.Errorf("digest of shard %d on server %s: %w", shard, name, err)
	}
	return Digest{rowraft.Index(reply.AppliedIndex), hex.EncodeToString(reply.Digest), reply.Rows}, nil
}

// holders lists the servers that have a replica of shard.
func (a Admins) holders(ctx context.Context, shard rowraft.ShardID) ([]string, error) {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(a)) {
		rs, err := a.Replicas(ctx, name, time.Second)
		if err != nil {
			return nil, err
		}
		for _, r := range rs {
			if r.Shard == shard {
				out = append(out, name)
			}
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no server has shard %d", shard)
	}
	return out, nil
}

// Digests returns the digest of each replica of a shard, all at one
// index. Nothing may write meanwhile.
func (a Admins) Digests(ctx context.Context, shard rowraft.ShardID) (map[string]Digest, error) {
	var out map[string]Digest
	err := Poll(ctx, func() error {
		var newest rowraft.Index
		for _, d := range out {
			newest = max(newest, d.Index)
		}
		holders, err := a.holders(ctx, shard)
		if err != nil {
			return err
		}
		out = make(map[string]Digest)
		for _, name := range holders {
			d, err := a.Digest(ctx, name, shard, newest, 2*time.Second)
			if err != nil {
				return err
			}
			out[name] = d
		}
		for name, d := range out {
			if first := holders[0]; d.Index != out[first].Index {
				return fmt.Errorf("shard %d: server %s is at index %d, %s at %d", shard, name, d.Index, first, out[first].Index)
			}
		}
		return nil
	})
	return out, err
}

// TransferLeader asks a server, past the proxies, to hand its lead of a shard to
// another and returns the new leader's term.
func (a Admins) TransferLeader(ctx context.Context, from string, shard rowraft.ShardID,
	to string) (rowraft.Term, error) {
	reply, err := rowraftv1.NewReplicasClient(a[from]).TransferLeader(ctx,
		&rowraftv1.TransferLeaderRequest{Shard: uint32(shard), ToNode: to})
	if err != nil {
		return 0, fmt.Errorf("server %s, transfer of shard %d to %s: %w", from, shard, to, err)
	}
	return rowraft.Term(reply.Term), nil
}

// CaughtUp waits until every server has applied, of every shard, what any of them
// had committed when this was called.
func (a Admins) CaughtUp(ctx context.Context) error {
	want := make(map[rowraft.ShardID]rowraft.Index)
	seen := make(map[string]bool)
	return Poll(ctx, func() error {
		for _, name := range slices.Sorted(maps.Keys(a)) {
			if seen[name] {
				continue
			}
			rs, err := a.Replicas(ctx, name, time.Second)
			if err != nil {
				return err
			}
			for _, r := range rs {
				want[r.Shard] = max(want[r.Shard], r.Applied)
			}
			seen[name] = true
		}
		for _, name := range slices.Sorted(maps.Keys(a)) {
			rs, err := a.Replicas(ctx, name, time.Second)
			if err != nil {
				return err
			}
			have := make(map[rowraft.ShardID]rowraft.Index)
			for _, r := range rs {
				have[r.Shard] = r.Applied
			}
			for shard, applied := range have {
				if applied < want[shard] {
					return fmt.Errorf("server %s has applied %d of shard %d, another %d", name, applied, shard, want[shard])
				}
			}
		}
		return nil
	})
}

// Proved has all replicas of all shards compared at one mark, and returns those that do
// not agree with the majority. Nothing may write meanwhile.
func (a Admins) Proved(ctx context.Context) (wrong []string, err error) {
	var asked time.Time
	err = Poll(ctx, func() error {
		wrong = nil
		proved := make(map[rowraft.ShardID]rowraft.Index)
		var behind error
		for _, name := range slices.Sorted(maps.Keys(a)) {
			rs, err := a.Replicas(ctx, name, time.Second)
			if err != nil {
				return err
			}
			for _, r := range rs {
				switch first, seen := proved[r.Shard]; {
				case r.Fenced != "":
					wrong = append(wrong, fmt.Sprintf("the replica of shard %d on server %s is fenced: %s", r.Shard, name, r.Fenced))
				case r.Divided != 0:
					wrong = append(wrong, fmt.Sprintf("shard %d is divided at index %d, says server %s", r.Shard, r.Divided, name))
				case r.Proved == 0 || seen && r.Proved != first:
					proved[r.Shard] = max(first, r.Proved)
					behind = fmt.Errorf(
						"the replicas of shard %d were not compared since the last push: server %s agreed at %d, another at %d", r.Shard,
						name, r.Proved, first)
				default:
					proved[r.Shard] = r.Proved
				}
			}
		}
		if len(wrong) > 0 {
			return nil
		}
		// A follower hears of a verdict a moment after its leader: another one each time
		// would keep it behind for ever.
		if behind != nil && time.Since(asked) > time.Second {
			asked = time.Now()
			a.prove(ctx, slices.Collect(maps.Keys(proved)))
		}
		return behind
	})
	return wrong, err
}

// prove asks the leader to compare the replicas of shards: one that came back by a
// snapshot has not been compared since.
func (a Admins) prove(ctx context.Context, shards []rowraft.ShardID) {
	for _, shard := range shards {
		for _, name := range slices.Sorted(maps.Keys(a)) {
			attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
			_, err := rowraftv1.NewReplicasClient(a[name]).Prove(attempt, &rowraftv1.ProveRequest{Shard: uint32(shard)})
			cancel()
			if err == nil {
				break
			}
		}
	}
}

// Poll calls try until it returns nil; when ctx ends, its last error.
func Poll(ctx context.Context, try func() error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := try()
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err // a try that was cut short tells nothing
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), last)
		}
	}
}

// BadLines returns what must never stand in a server's log. After a disk fault a
// server may say that it cannot go on.
func BadLines(log []byte) []string {
	var out []string
	faulty := false
	for line := range bytes.Lines(log) {
		switch {
		case bytes.Contains(line, []byte(logFault)):
			faulty = true
		case bytes.Contains(line, []byte(logNewLife)), bytes.Contains(line, []byte(logFaultsSet)):
			faulty = false
		}
		for _, bad := range []string{`"level":"ERROR"`, "panic:", "fatal error:", "DATA RACE"} {
			if bytes.Contains(line, []byte(bad)) && !(faulty && bad == `"level":"ERROR"`) {
				out = append(out, string(bytes.TrimSpace(line)))
				break
			}
		}
	}
	return out
}
