package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// sessions has the client's session in each shard. All are of one client id and, until one is renewed, of
// one incarnation.
type sessions struct {
	*lifetime
	cluster     *cluster
	router      *router
	control     *Control
	maxInFlight int
	tls         *certs.Source
	shards      perShard[sessionState]

	// naming guards client, inc and issuer. They do not change while underway is above 0. client does not
	// change after the first session is open either: batches read it without a lock.
	naming   ctxMutex
	client   rowraft.ClientID
	inc      rowraft.Incarnation
	issuer   rowraft.ClusterID // the cluster whose scheduler issued inc
	underway atomic.Int32      // openings in progress

	member atomic.Pointer[rowraftv1.JobIdentity] // the client's membership of a job; nil: none
	left   []*shardSession                       // of clusters that the client has left; guarded by cluster.mu
	epoch  atomic.Uint64                         // of the tables that all sessions are for; 0: no session yet
}

// sessionState is the session of one shard.
type sessionState struct {
	session atomic.Pointer[shardSession]
	opening ctxMutex // one goroutine at a time opens the session
}

func newSessions(c *Client, tls *certs.Source) *sessions {
	s := &sessions{
		lifetime: c.lifetime, cluster: c.cluster, router: c.router, control: c.control, maxInFlight: c.opts.MaxInFlight,
		tls:    tls,
		naming: make(ctxMutex, 1), client: own(tls, c.opts.ClientID),
	}
	s.shards.init = func(st *sessionState) { st.opening = make(ctxMutex, 1) }
	return s
}

// own returns id with the first 8 bytes of the identity of source, so that servers accept it from the owner
// of that certificate (docs/formats/certificate.md).
func own(source *certs.Source, id rowraft.ClientID) rowraft.ClientID {
	if source != nil {
		me := source.Identity()
		tag := me.Tag()
		copy(id[:], tag[:])
	}
	return id
}

// dropCluster ends the sessions of the client's cluster. Batches in progress end when they next look for a
// server; Flush still waits for them, so their sessions move to left. REQUIRES: cluster.mu is held for
// writing.
func (s *sessions) dropCluster() {
	for _, st := range s.shards.all() {
		if ss := st.session.Swap(nil); ss != nil {
			s.left = append(s.left, ss)
		}
	}
	s.epoch.Store(0)
}

// openAll opens, concurrently, the sessions that batches need and the client does not
// have. It runs before any batch is sent, so the code of its error says that nothing was
// applied, also where the code of the failed call leaves that open.
func (s *sessions) openAll(ctx context.Context, batches []*batch) error {
	var missing []rowraft.ShardID
	for _, b := range batches {
		if s.shards.at(b.shard).session.Load() == nil && !slices.Contains(missing, b.shard) {
			missing = append(missing, b.shard)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	g, opening := errgroup.WithContext(ctx)
	for _, shard := range missing {
		g.Go(func() error {
			_, err := s.open(opening, shard)
			return err
		})
	}
	err := g.Wait()
	switch code := rowraft.CodeOf(err); {
	case err == nil || code == rowraft.CodeClosing:
		return err
	case ctx.Err() != nil || code.Retryable():
		return rowraft.Errorf(rowraft.CodeNotSent,
			"nothing was sent, because the client had no session before the call ended; the call can be made again: %w", err)
	case code.MaybeApplied(): // for example SessionExpired: another call cannot succeed either
		return rowraft.Errorf(rowraft.CodePrecondition, "nothing was sent: %w", err)
	}
	return err
}

// open returns the session of a shard. It opens the session at the first push: the scheduler issues
// the incarnation, and an entry in the shard's log opens the session. Openings in different shards run
// concurrently.
func (s *sessions) open(ctx context.Context, shard rowraft.ShardID) (*shardSession, error) {
	at := s.shards.at(shard)
	if ss := at.session.Load(); ss != nil {
		return ss, nil
	}
	if err := s.lock(ctx, at.opening); err != nil {
		return nil, fmt.Errorf("open session in shard %d: %w", shard, err)
	}
	defer at.opening.unlock()
	if ss := at.session.Load(); ss != nil {
		return ss, nil
	}
	home := s.cluster.Load().Cluster
	inc, err := s.beginOpening(ctx, home)
	if err != nil {
		return nil, fmt.Errorf("open session in shard %d: %w", shard, err)
	}
	defer s.underway.Add(-1)
	inc, epoch, err := s.openAs(ctx, home, shard, inc)
	if err != nil {
		return nil, fmt.Errorf("open session in shard %d: %w", shard, err)
	}
	ss := &shardSession{cluster: home, shard: shard, inc: inc, maxInFlight: s.maxInFlight, closed: s.ctx.Done(), next: 1,
		ended: make(map[rowraft.Seq]struct{})}
	same := false
	if !s.cluster.within(home, func() {
		if same = s.epoch.CompareAndSwap(0, epoch) || s.epoch.Load() == epoch; same {
			at.session.Store(ss)
		}
	}) {
		return nil, s.cluster.replaced(home)
	}
	if !same {
		return nil, s.otherEpoch(shard, epoch)
	}
	return ss, nil
}

// beginOpening returns the client's incarnation in a cluster and counts an opening in underway. For the
// first session, the cluster's scheduler issues the incarnation.
func (s *sessions) beginOpening(ctx context.Context, home rowraft.ClusterID) (rowraft.Incarnation, error) {
	if err := s.lock(ctx, s.naming); err != nil {
		return 0, err
	}
	defer s.naming.unlock()
	if s.inc == 0 || s.issuer != home {
		if s.issuer != home {
			s.member.Store(nil) // it belonged to a job of another cluster
		}
		inc, err := s.issueIncarnation(ctx)
		if err != nil {
			return 0, err
		}
		s.inc, s.issuer = inc, home
	}
	s.underway.Add(1)
	return s.inc, nil
}

// all lists the sessions that may have batches without a result.
func (s *sessions) all() (out []*shardSession) {
	s.cluster.mu.RLock()
	defer s.cluster.mu.RUnlock()
	for _, st := range s.shards.all() {
		if ss := st.session.Load(); ss != nil {
			out = append(out, ss)
		}
	}
	return append(out, s.left...)
}

// adopt is Control.Adopt.
func (s *sessions) adopt(ctx context.Context, as rowraft.ClientID, id *rowraftv1.JobIdentity) error {
	if err := s.lock(ctx, s.naming); err != nil {
		return err
	}
	defer s.naming.unlock()
	for _, st := range s.shards.all() {
		if s.underway.Load() > 0 || st.session.Load() != nil {
			return rowraft.Errorf(rowraft.CodeInternal, "a client that has pushed entered a job")
		}
	}
	s.client, s.inc, s.issuer = own(s.tls, as), rowraft.Incarnation(id.GetIncarnation()), s.cluster.Load().Cluster
	s.member.Store(id)
	return nil
}

// openAs opens the session of a shard under inc. If the session of that incarnation is already over there,
// openAs uses a new incarnation. It returns the incarnation in use and the table epoch. OpenSession takes
// two calls: the first returns a ticket, the second opens the session with it.
func (s *sessions) openAs(ctx context.Context, home rowraft.ClusterID, shard rowraft.ShardID,
	inc rowraft.Incarnation) (_ rowraft.Incarnation, epoch uint64, err error) {
	for tries := 0; ; tries++ {
		_, err := s.router.call(ctx, home, shard, func(ctx context.Context, stub stub) error {
			q := &rowraftv1.OpenSessionRequest{Shard: uint32(shard), ClientId: s.client[:], Incarnation: uint64(inc)}
			reply, err := stub.OpenSession(ctx, q)
			if err != nil {
				return err
			}
			q.Ticket = reply.GetTicket()
			reply, err = stub.OpenSession(ctx, q)
			epoch = reply.GetTableEpoch()
			return err
		})
		if err == nil || !sessionEnded(err) || tries == 3 {
			return inc, epoch, err
		}
		if inc, err = s.issueIncarnation(ctx); err != nil {
			return 0, 0, err
		}
	}
}

func (s *sessions) otherEpoch(shard rowraft.ShardID, epoch uint64) error {
	return rowraft.Errorf(rowraft.CodeSessionExpired, "open session in shard %d: the session began with tables of epoch "+
		"%d, a restore has brought those of %d: connect again", shard, s.epoch.Load(), epoch)
}

// sessionEnded reports whether err says that the shard has no session any more, for another reason than a
// later client with the same id.
func sessionEnded(err error) bool {
	_, ended := errors.AsType[*rowraft.SessionEndedError](err)
	return ended
}

// issueIncarnation asks the scheduler for an incarnation. If the client is a member of a job, the scheduler
// issues one only while that membership holds: the session of a rank belongs to the worker that has the
// rank now.
func (s *sessions) issueIncarnation(ctx context.Context) (inc rowraft.Incarnation, err error) {
	q := &rowraftv1.IssueIncarnationRequest{ClientId: s.client[:]}
	if id := s.member.Load(); id != nil {
		q.Job, q.Run, q.Rank, q.Incarnation = id.GetJob(), id.GetRun(), id.GetRank(), id.GetIncarnation()
	}
	// Only other servers may be able to reach the scheduler's leader.
	err = s.control.callCluster(rpc.AskForward(ctx), "get an incarnation",
		func(ctx context.Context, stub rowraftv1.ClusterClient) error {
			ctx, cancel := context.WithTimeout(ctx, s.router.attempt)
			defer cancel()
			reply, err := stub.IssueIncarnation(ctx, q)
			inc = rowraft.Incarnation(reply.GetIncarnation())
			return err
		})
	return inc, err
}

// closeWithin is how long Close waits for shards to close the sessions.
const closeWithin = time.Second

// closeAll closes this client's session in every shard. It tries for closeWithin only: a session that
// stays open expires, or makes room for others once it is idle. REQUIRES: no batch is being sent any more.
func (s *sessions) closeAll() {
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	var wg sync.WaitGroup
	for shard, st := range s.shards.all() {
		if ss := st.session.Load(); ss != nil {
			wg.Go(func() {
				if err := s.close(ctx, shard, ss); err != nil {
					s.router.log.Debug("close session", "shard", shard, "err", err)
				}
			})
		}
	}
	wg.Wait()
}

func (s *sessions) close(ctx context.Context, shard rowraft.ShardID, ss *shardSession) (err error) {
	inc, _ := ss.present()
	q := &rowraftv1.CloseSessionRequest{Shard: uint32(shard), ClientId: s.client[:], Incarnation: inc}
	var to server
	for hint, tries := true, 0; tries < 4 && ctx.Err() == nil; tries++ {
		to = s.router.target(shard, to.node, hint, true)
		conn, cerr := s.router.conns.Get(to.addr)
		if cerr != nil {
			return fmt.Errorf("server %s: %w", to.addr, cerr)
		}
		attempt, cancel := context.WithTimeout(rpc.WithCluster(ctx, ss.cluster), closeWithin/2) // the server may hang
		if to.forwards() {
			attempt = rpc.AskForward(attempt)
		}
		_, err = rowraftv1.NewTableClient(conn).CloseSession(attempt, q)
		cancel()
		if err == nil || route.On(route.Table, err) == route.Return {
			return err
		}
		hint = false
		if nl, ok := errors.AsType[*rowraft.NotLeaderError](err); ok && nl.Leader != "" && nl.Leader != to.node {
			s.router.learnLeader(shard, nl.Leader, nl.Term)
			hint = true
		}
	}
	return err
}
