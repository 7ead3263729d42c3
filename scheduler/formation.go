package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/identity"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
)

// How a cluster forms
//
// Each server is started with the same list of addresses, and answers Hello as soon as it listens. A server without a
// cluster sends Hello to all addresses repeatedly, until one of two things is true:
//
//   - An answer names a cluster. The server writes the cluster's id and founders into its identity file.
//   - All addresses answer, no answer names a cluster, and the answers come from different nodes that run a
//     scheduler and have the same list. Then the node with the smallest node id generates the cluster id. It
//     writes the id and the list of node ids that it has just received into its identity file, in one step. The
//     other nodes learn both from a later Hello.
//
// Only then does a server start its Raft groups, and a founder bootstraps the scheduler's group with the list in its
// file. So:
//
//   - The write of the file is the only step that changes anything. A crash before it loses nothing. After it the
//     server knows all it needs.
//   - All founders bootstrap the same list: one node writes it once, and the others copy it with the cluster id.
//   - Node ids decide, not addresses: the lists of two servers may be in any order, and only one node has the
//     smallest id.
//   - A disk that is wiped while the cluster forms returns under another node id. If the old id is in the list,
//     the new one is not: the node joins as a standby (seats.go), and the others have their majority. If it forms
//     a second cluster with nodes that have not joined the first one, no node is in both clusters. So at most one
//     of them has a majority of its founders, and Hello refuses the other.

const (
	helloTimeout    = time.Second
	formationPoll   = 100 * time.Millisecond
	formationReport = 5 * time.Second
)

// formation joins a cluster or forms one. Form runs before the scheduler's group exists.
type formation struct {
	*group
	waiting      atomic.Pointer[string] // the condition that Form waits for, for messages
	helloTimeout time.Duration          // the constant helloTimeout, except in tests

	// hello sends Hello to one address. Tests replace it with their own network.
	hello func(ctx context.Context, addr string, req *rowraftv1.HelloRequest) (*rowraftv1.HelloReply, error)
}

func newFormation(g *group) *formation {
	f := &formation{group: g, helloTimeout: helloTimeout}
	f.hello = f.helloTo
	return f
}

// answer is the result of Hello to one address.
type answer struct {
	addr  string
	reply *rowraftv1.HelloReply
	err   error
}

// Form returns after this server durably belongs to a cluster. It joins the cluster of the servers at Options.Join, or
// forms a cluster with them; without addresses it forms a cluster of one server. This server must answer Hello already.
//
// Errors: CodeIdentity if this data directory and the servers at those addresses belong to different clusters;
// CodeInvalidArgument if the servers were started with different lists; CodeDeadline when ctx ends first.
func (f *formation) Form(ctx context.Context) (identity.Identity, error) {
	dir := f.opts.Identity
	if id := dir.Identity(); id.Cluster != "" {
		return id, f.checkRestart(ctx, id)
	}
	if len(f.opts.Join) == 0 {
		if !f.opts.Self.Scheduler {
			return dir.Identity(), rowraft.Errorf(rowraft.CodeInvalidArgument,
				"a server without a scheduler needs --join with the addresses of the servers that have one")
		}
		if f.opts.Self.NoShards {
			return f.found([]identity.Member{f.selfMember()})
		}
		f.logger.Info("this server forms a cluster of its own (no --join)")
		return f.found([]identity.Member{f.selfMember()})
	}
	poll := time.NewTicker(formationPoll)
	defer poll.Stop()
	var reported, untrusted time.Time
	for {
		answers := f.helloAll(ctx)
		if err := untrustedByAll(f.opts.Self.ID, answers); err == nil {
			untrusted = time.Time{}
		} else if untrusted.IsZero() {
			untrusted = time.Now()
		} else if time.Since(untrusted) >= untrustedPatience {
			return dir.Identity(), err
		}
		done, waiting, err := f.formStep(answers)
		f.waiting.Store(&waiting)
		if err != nil || done {
			return dir.Identity(), err
		}
		if now := time.Now(); now.Sub(reported) >= formationReport {
			level := slog.LevelInfo
			if slices.ContainsFunc(answers, func(a answer) bool { return rpc.Untrusted(a.err) != "" }) {
				level = slog.LevelWarn
			}
			f.logger.Log(ctx, level, "server not ready: the cluster is not formed yet", "waiting_for", waiting)
			reported = now
		}
		select {
		case <-ctx.Done():
			return dir.Identity(), fmt.Errorf("form the cluster: waiting for %s: %w", waiting, ctx.Err())
		case <-poll.C:
		}
	}
}

// untrustedPatience is how long a server that was never in a cluster waits for other certificates.
const untrustedPatience = 10 * time.Second

// untrustedByAll returns an error if this server has the certificates of another cluster: at least two servers answer,
// this one not counted, and each refuses this side's certificate or shows one of another CA. If only one does, that one
// may be wrong.
func untrustedByAll(self rowraft.NodeID, answers []answer) error {
	refused, why := 0, ""
	for _, a := range answers {
		text := rpc.Untrusted(a.err)
		switch {
		case text != "":
			refused, why = refused+1, fmt.Sprintf("%s: %s", a.addr, text)
		case a.err == nil && a.reply.GetNodeId() != string(self):
			return nil
		}
	}
	if refused < 2 {
		return nil
	}
	return rowraft.Errorf(rowraft.CodeDenied, "each of the %d servers that answer has certificates of another CA: %s",
		refused, why)
}

func (f *formation) selfMember() identity.Member {
	n := f.opts.Self
	return identity.Member{Node: n.ID, Name: n.Name, Addr: n.Addr, PeerAddr: n.PeerAddr}
}

// helloAll sends Hello to every address concurrently.
func (f *formation) helloAll(ctx context.Context) []answer {
	id := f.opts.Identity.Identity()
	req := &rowraftv1.HelloRequest{ClusterId: string(id.Cluster), NodeId: string(id.Node), Addr: f.opts.Self.Addr,
		PeerAddr: f.opts.Self.PeerAddr}
	ctx, cancel := context.WithTimeout(ctx, f.helloTimeout)
	defer cancel()
	answers := make([]answer, len(f.opts.Join))
	var g errgroup.Group
	for i, addr := range f.opts.Join {
		g.Go(func() error {
			answers[i] = answer{addr: addr}
			answers[i].reply, answers[i].err = f.hello(ctx, addr, req)
			return nil
		})
	}
	_ = g.Wait()
	return answers
}

// helloTo sends Hello to one address.
func (f *formation) helloTo(ctx context.Context, addr string,
	req *rowraftv1.HelloRequest) (*rowraftv1.HelloReply, error) {
	conn, err := f.conns.Get(addr)
	if err != nil {
		return nil, err
	}
	return rowraftv1.NewClusterClient(conn).Hello(ctx, req)
}

// formStep evaluates one round of answers: it joins a cluster, forms one, or returns what this server waits for.
func (f *formation) formStep(answers []answer) (done bool, waiting string, err error) {
	if joined, waiting, err := f.joinExisting(answers); err != nil || joined || waiting != "" {
		return joined, waiting, err
	}
	var silent []string
	for _, a := range answers {
		if a.err != nil {
			if rowraft.CodeOf(a.err) == rowraft.CodeIdentity {
				return false, "", a.err
			}
			if why := rpc.Untrusted(a.err); why != "" {
				a.addr += " (" + why + ")"
			}
			silent = append(silent, a.addr)
		}
	}
	if len(silent) > 0 {
		return false, "answers from " + strings.Join(silent, ", "), nil
	}
	if !f.opts.Self.Scheduler {
		return false, "the servers with a scheduler to form the cluster", nil
	}
	members, err := f.founders(answers)
	if err != nil {
		return false, "", err
	}
	// Only the server with the smallest id may write the list, so that no two servers write different ones.
	if members[0].Node != f.opts.Self.ID {
		return false, fmt.Sprintf("%s at %s to form the cluster", members[0].Node, members[0].Addr), nil
	}
	_, err = f.found(members)
	return err == nil, "", err
}

// joinExisting joins the cluster that an answer names. A scheduler that did not found that cluster first waits for a
// leader of it, which can make it a member. If the cluster has lost its scheduler forever, the directory of this server
// thus stays empty and can form the next cluster.
func (f *formation) joinExisting(answers []answer) (joined bool, waiting string, err error) {
	var found *answer
	for i, a := range answers {
		switch {
		case a.err != nil || a.reply.GetClusterId() == "":
		case found != nil && found.reply.ClusterId != a.reply.ClusterId:
			return false, "", rowraft.Errorf(rowraft.CodeIdentity,
				"%s belongs to cluster %s and %s to cluster %s: the addresses to join must be of one cluster",
				found.addr, found.reply.ClusterId, a.addr, a.reply.ClusterId)
		default:
			found = &answers[i]
		}
	}
	if found == nil {
		return false, "", nil
	}
	var members []identity.Member
	for _, f := range found.reply.GetFounders() {
		members = append(members, identity.Member{Node: rowraft.NodeID(f.Id), Name: f.Name, Addr: f.Addr,
			PeerAddr: f.PeerAddr})
	}
	self := f.opts.Self
	founder := slices.ContainsFunc(members, func(m identity.Member) bool { return m.Node == self.ID })
	leads := slices.ContainsFunc(answers, func(a answer) bool {
		return a.err == nil && a.reply.GetSchedulerLeader() != ""
	})
	if self.Scheduler && !founder && !leads {
		return false,
			fmt.Sprintf("a leader of the scheduler of cluster %s, which was formed without this data directory (server %s)",
				found.reply.ClusterId, self.ID), nil
	}
	// The cluster and its founders are written in one step: a server that knew the cluster alone could bootstrap the
	// scheduler's group with a list of its own.
	if err := f.opts.Identity.Join(rowraft.ClusterID(found.reply.ClusterId), members); err != nil {
		return false, "", err
	}
	f.logger.Info("joined the cluster", "cluster", found.reply.ClusterId, "through", found.addr)
	f.tellStandby()
	return true, "", nil
}

// founders returns the founders of a new cluster, by node id, from the answers of all addresses. No answer names a
// cluster.
func (f *formation) founders(answers []answer) ([]identity.Member, error) {
	want := sortedCopy(f.opts.Join)
	byNode := make(map[rowraft.NodeID]string)
	var members []identity.Member
	for _, a := range answers {
		r := a.reply
		id := rowraft.NodeID(r.GetNodeId())
		if other, twice := byNode[id]; twice {
			return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
				"%s and %s are the same server (server %s): name each server once", other, a.addr, id)
		}
		byNode[id] = a.addr
		if !r.GetScheduler() {
			return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "the server at %s runs no scheduler: a new cluster is "+
				"formed by servers with --with-scheduler, and --join names these only", a.addr)
		}
		if !slices.Equal(r.GetJoin(), want) {
			return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
				"the server at %s was started with --join %s, this one with --join %s: they must name the same servers",
				a.addr, strings.Join(r.GetJoin(), ","), strings.Join(want, ","))
		}
		members = append(members, identity.Member{Node: id, Name: r.GetNodeName(), Addr: r.GetAddr(),
			PeerAddr: r.GetPeerAddr()})
	}
	if _, ok := byNode[f.opts.Self.ID]; !ok {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"none of the addresses in --join %s leads to this server, which is at %s", strings.Join(want, ","), f.opts.Self.Addr)
	}
	slices.SortFunc(members, func(a, b identity.Member) int { return cmp.Compare(a.Node, b.Node) })
	return members, nil
}

// tellStandby logs that this server is a standby if it did not found its cluster.
func (f *formation) tellStandby() {
	if id := f.opts.Identity.Identity(); f.opts.Self.Scheduler && !id.Founder() {
		f.logger.Info("this server did not found the cluster: unless it has a seat in the scheduler already, it is a "+
			"standby and gets that of a member that is decommissioned and down", "cluster", string(id.Cluster))
	}
}

// found creates a cluster of members; this server is one of them.
func (f *formation) found(members []identity.Member) (identity.Identity, error) {
	cluster := rowraft.ClusterID(uuid.NewString())
	if err := f.opts.Identity.Join(cluster, members); err != nil {
		return f.opts.Identity.Identity(), err
	}
	f.logger.Info("formed the cluster", "cluster", cluster, "founders", len(members))
	return f.opts.Identity.Identity(), nil
}

// checkRestart sends Hello to the addresses once, and returns an error if one belongs to another cluster. It ignores
// addresses that do not answer: those servers may be starting too.
func (f *formation) checkRestart(ctx context.Context, id identity.Identity) error {
	f.tellStandby()
	for _, a := range f.helloAll(ctx) {
		if a.err != nil {
			if rowraft.CodeOf(a.err) == rowraft.CodeIdentity {
				return fmt.Errorf("data directory %s: %w", f.opts.Identity.Path(), a.err)
			}
			continue
		}
		if err := identity.CheckCluster(id.Cluster, rowraft.ClusterID(a.reply.GetClusterId())); err != nil {
			return fmt.Errorf("data directory %s: server %s: %w", f.opts.Identity.Path(), a.addr, err)
		}
	}
	return nil
}

// Peers sends Hello to the addresses of Options.Join and returns the servers of this cluster. After a restart under
// other addresses the founders find each other in this way, because no map has the new addresses yet.
func (f *formation) Peers(ctx context.Context) ([]identity.Member, error) {
	var out []identity.Member
	var errs []error
	cluster := string(f.opts.Identity.Identity().Cluster)
	for _, a := range f.helloAll(ctx) {
		switch {
		case a.err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", a.addr, a.err))
		case a.reply.GetClusterId() == cluster:
			out = append(out, identity.Member{Node: rowraft.NodeID(a.reply.NodeId), Name: a.reply.NodeName, Addr: a.reply.Addr,
				PeerAddr: a.reply.PeerAddr})
		}
	}
	return out, errors.Join(errs...)
}

// MetaMembers returns the members with which every founder bootstraps the scheduler's group.
func MetaMembers(id identity.Identity) []raftstore.Member {
	out := make([]raftstore.Member, len(id.Founders))
	for i, f := range id.Founders {
		out[i] = raftstore.Member{Replica: f.MetaReplica(), Node: f.Node}
	}
	return out
}
