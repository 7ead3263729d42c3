package jobs

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/rpc/rpctest"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/checkpoints"
	"github.com/rowraft/rowraft/scheduler/metatest"
)

// cluster is a cluster of one server and one shard. Its scheduler's group has one member without a log.
type cluster struct {
	rowraftv1.UnimplementedClusterServer
	*Service
	leader      *metatest.Leader
	checkpoints *checkpoints.Service
	addr        string

	mu       sync.Mutex
	leadsFor time.Duration
	pause    time.Duration // that the next CheckPause finds
}

// clusterLeader is the leader of a cluster for jobs and checkpoints.
type clusterLeader struct {
	*metatest.Leader
	c *cluster
}

func (l clusterLeader) LeadsFor() time.Duration {
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	return l.c.leadsFor
}

func (l clusterLeader) CheckPause() {
	l.c.mu.Lock()
	lost := l.c.pause
	l.c.pause = 0
	l.c.mu.Unlock()
	l.c.DiscountPause(lost)
}

func (clusterLeader) Staged() []checkpoints.StagedRestore { return nil }

func (clusterLeader) Now() time.Time { return time.Now() }

func (c *cluster) GetMap(ctx context.Context, q *rowraftv1.GetMapRequest) (*rowraftv1.GetMapReply, error) {
	ctx, cancel := context.WithTimeout(ctx, min(time.Duration(q.GetWaitNs()), time.Minute))
	defer cancel()
	reply := &rowraftv1.GetMapReply{}
	if m := c.view.Wait(ctx, rowraft.MapVersion(q.GetKnownVersion())); m != nil {
		reply.Map = rpc.MapToProto(m)
	}
	return reply, nil
}

func (c *cluster) IssueIncarnation(ctx context.Context,
	q *rowraftv1.IssueIncarnationRequest) (*rowraftv1.IssueIncarnationReply, error) {
	n, err := resultOf[rowraft.Incarnation](c.leader.ProposeResult(ctx,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_IssueIncarnation{
			IssueIncarnation: &rowraftv1.MetaIssueIncarnation{}}}))
	return &rowraftv1.IssueIncarnationReply{Incarnation: uint64(n)}, err
}

func (c *cluster) setLeadsFor(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leadsFor = d
}

// pauseTrainers is Trainers.Pause.
func (c *cluster) pauseTrainers(ctx context.Context, need string, skip, again bool,
	left map[string]error) (*pauseRound, error) {
	p, err := c.trainers.Pause(ctx, need, skip, again, left)
	m, _ := p.(*pauseRound)
	return m, err
}

// served returns a cluster that answers on a port, with a client.
func served(t *testing.T) (*cluster, *client.Client) {
	t.Helper()
	return servedWith(t, func(*grpc.Server) {})
}

// servedWith is served with more services on the port.
func servedWith(t *testing.T, more func(*grpc.Server)) (*cluster, *client.Client) {
	t.Helper()
	lis := rpctest.Listen(t)
	s := newCluster(t, lis.Addr().String())
	rpctest.Serve(t, lis, func(srv *grpc.Server) {
		rowraftv1.RegisterClusterServer(srv, s)
		rowraftv1.RegisterCheckpointsServer(srv, s.checkpoints)
		rowraftv1.RegisterJobsServer(srv, s.Service)
		more(srv)
	})
	var err error
	if s.leader.Conn, err = rpc.Dial(s.addr, nil, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.leader.Conn.Close() })
	return s, another(t, s)
}

// newCluster returns a cluster that does not answer.
func newCluster(t *testing.T, addr string) *cluster {
	l := metatest.NewLeader(t, 1, addr)
	s := &cluster{leader: l, addr: addr}
	quiet := slog.New(slog.DiscardHandler)
	s.Service = New(Options{Leader: clusterLeader{l, s}, Machine: l.Machine, View: l.View, Logger: quiet,
		Entered: func() {}})
	s.checkpoints = checkpoints.New(checkpoints.Options{Leader: clusterLeader{l, s}, Trainers: s.trainers,
		Machine: l.Machine, View: l.View, Logger: quiet})
	s.trainers.Serve(s.checkpoints)
	const long = 2 * time.Minute
	s.trainers.patience = patience{absent: long, pause: long, ignored: long, quick: long, announce: long, release: long,
		state: long}
	return s
}

// another returns one more client of the cluster. Each worker has its own.
func another(t *testing.T, s *cluster) *client.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := client.Dial(ctx, client.Options{Endpoints: []string{s.addr}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// runLoop runs the control loop until the test ends.
func runLoop(t *testing.T, s *cluster) {
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() { s.Run(ctx) })
	t.Cleanup(func() { cancel(); ended.Wait() })
}

// enter makes a worker a member of job "ctr".
func enter(t *testing.T, c *client.Client, worker string, workers int, change func(*jobs.Entry)) (*jobs.Member, error) {
	t.Helper()
	e := jobs.Entry{Job: "ctr", Worker: worker, Workers: workers, Settings: map[string]string{"mode": "async"},
		Lease: time.Minute}
	if change != nil {
		change(&e)
	}
	return jobs.Enter(t.Context(), c, e)
}

func memberState(s *cluster, rank int) rowraftv1.MemberState {
	return s.machine.RunOf("ctr").GetMembers()[rank].GetState()
}

const (
	lost       = rowraftv1.MemberState_MEMBER_STATE_LOST
	ended      = rowraftv1.MemberState_MEMBER_STATE_ENDED
	jobStopped = rowraftv1.JobState_JOB_STATE_STOPPED
)

// preparedParts is a shard that is prepared for a cut, and waits for it.
type preparedParts struct {
	rowraftv1.UnimplementedReplicasServer
	prepared, ended chan struct{}
}

func (f *preparedParts) WriteShardFile(stream grpc.BidiStreamingServer[rowraftv1.WriteShardFileRequest,
	rowraftv1.WriteShardFileReply]) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	if err := stream.Send(
		&rowraftv1.WriteShardFileReply{Step: &rowraftv1.WriteShardFileReply_Prepared{
			Prepared: &rowraftv1.WriteShardFilePrepared{TableEpoch: 1}}}); err != nil {
		return err
	}
	f.prepared <- struct{}{}
	_, err := stream.Recv()
	f.ended <- struct{}{}
	return err
}
