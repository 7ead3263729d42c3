package nemesis

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/rowraft/rowraft/e2e/cluster"
)

// faults lists every kind; the order has no meaning.
var faults []fault

func init() {
	faults = []fault{
		{"kill-leader", "SIGKILL a leader, restart it", killLeader, stands},
		{"kill-follower", "SIGKILL a follower, restart it", killFollower, stands},
		{"kill-majority", "SIGKILL all but one server, restart them", killMajority, stands},
		{"kill-all", "SIGKILL every server at once, restart them", killAll, stands},
		{"restart", "SIGTERM a server, start it again", restart, passes},
		{"pause-leader", "SIGSTOP a leader for 0.1 to 4 s", pauseLeader, stands},
		{"pause-follower", "SIGSTOP a follower for 0.1 to 4 s", pauseFollower, stands},
		{"partition-leader", "cut a leader from the other servers, both ways", cutLeader(both, false), stands},
		{"isolate-leader", "cut a leader from servers and clients", cutLeader(both, true), stands},
		{"deaf-leader", "what others send to a leader is held back", cutLeader(inward, false), stands},
		{"mute-leader", "what a leader sends to others is held back", cutLeader(outward, false), stands},
		{"late-answers", "a leader that is about to be cut off gets late answers", lateAnswers, stands},
		{"partition-follower", "cut a follower from the other servers, both ways", cutFollower(both), stands},
		{"deaf-follower", "what others send to a follower is held back", cutFollower(inward), stands},
		{"mute-follower", "what a follower sends to others is held back", cutFollower(outward), stands},
		{"bridge", "two servers see each other only through the third", bridge, stands},
		{"refuse", "connections between a leader and the others are reset, now and when made", refuse, stands},
		{"delay", "every link between servers is 1 to 40 ms late, with jitter", shape(delayed), stands},
		{"loss", "1 to 20 % of pieces between servers come a retransmission late", shape(lossy), stands},
		{"slow-link", "a link between two servers carries 20 to 200 kB/s", slowLink, stands},
		{"reset-storm", "all connections are reset, again and again", resetStorm, passes},
		{"client-cut", "clients cannot reach a leader", clientCut(true), stands},
		{"client-mute", "a leader's answers do not reach the clients", clientCut(false), stands},
		{"retry-storm", "a client gives up each try after 20 ms on links of up to 12 ms each way", retryStorm, passes},
		{"zombie-client", "the older of two incarnations of a client goes on pushing", zombieClient, passes},
		{"install", "a follower is held back until it needs a snapshot", install, passes},
		{"transfer", "the lead of a shard is handed over", transfer, passes},
		{"transfer-storm", "the leads of all shards are handed over, again and again", transferStorm, passes},
		{"transfer-cut", "the lead is handed over while the leader is cut off", transferCut, passes},
		{"move", "a replica moves to another server", move(none), passes},
		{"move-kill", "a replica moves while its source, its target, the scheduler or another is killed", move(aKill),
			passes},
		{"move-cancel", "a replica begins to move and is called back", move(aCancel), passes},
		{"disk-fail-leader", "a leader's disk fails a write or sync of the log", disk(fails, true), passes},
		{"disk-fail-follower", "a follower's disk fails a write or sync of the log", disk(fails, false), passes},
		{"disk-full-leader", "a leader's disk has no room for the log", disk(full, true), passes},
		{"disk-full-follower", "a follower's disk has no room for the log", disk(full, false), passes},
		{"disk-hang-leader", "a leader's log write or sync does not return", disk(hangs, true), passes},
		{"disk-hang-follower", "a follower's log write or sync returns late", disk(hangs, false), passes},
		{"disk-slow-leader", "syncs of a leader's log take 20 to 120 ms", disk(slow, true), passes},
		{"disk-slow-follower", "syncs of a follower's log take 20 to 120 ms", disk(slow, false), passes},
		{"slow-disks", "writes to the logs of all servers take 200 to 400 ms", slowDisks, stands},
		{"session-flood", "throw-away clients open as many sessions as a shard remembers", sessionFlood, passes},
		{"rolled-back", "the shards of a server return to an older state of its disk", rolledBack, passes},
		{"invented-jobs", "jobs that wait for a peer, or never answer, stand in a registry while another trains",
			inventedJobs, passes},
		{"hung-destination", "a checkpoint goes to a destination that accepts and never answers", hungDestination, passes},
		{"foreign-log", "a server finds the log of another of its groups in the place of a log", foreignLog, passes},
		{"hostile", "malformed requests and garbage on both ports", hostile, passes},
	}
}

// Whether a fault may stand until the heal.
const (
	stands = true
	passes = false
)

const (
	restartLimit  = 45 * time.Second
	leaderSeen    = 4 * time.Second // how long a fault waits for its effect on leadership
	shortest      = 200 * time.Millisecond
	longest       = 2 * time.Second
	longestPause  = 4 * time.Second
	shortestPause = 100 * time.Millisecond
)

func killLeader(ctx context.Context, a *act) error {
	shard, l, err := a.leader(ctx)
	if err != nil || !a.take(l.Server) {
		return err
	}
	defer a.release(l.Server)
	a.target = l.Server
	if err := a.kill(l.Server); err != nil {
		return err
	}
	a.sawNewLeader(ctx, shard, l, leaderSeen)
	a.hold(ctx, time.Millisecond, longest/2)
	return a.revive(ctx, l.Server)
}

// kill ends servers and notes that they are gone.
func (a *act) kill(names ...string) error {
	if err := a.Cluster.Kill(names...); err != nil {
		return err
	}
	for _, n := range names {
		if a.Cluster.Running(n) {
			return fmt.Errorf("server %s has survived SIGKILL", n)
		}
	}
	a.saw("%d gone", len(names))
	return nil
}

// revive restarts servers; each must serve again.
func (a *act) revive(ctx context.Context, names ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, restartLimit, fmt.Errorf("not back %v after a restart", restartLimit))
	defer cancel()
	return a.Cluster.RestartAll(ctx, names...)
}

func killFollower(ctx context.Context, a *act) error {
	name, err := a.follower(ctx)
	if err != nil || !a.take(name) {
		return err
	}
	defer a.release(name)
	a.target = name
	if err := a.kill(name); err != nil {
		return err
	}
	a.hold(ctx, time.Millisecond, longest)
	return a.revive(ctx, name)
}

func killMajority(ctx context.Context, a *act) error {
	names := a.Cluster.Names()
	spared := a.rng.IntN(len(names))
	return a.killMany(ctx, a.Cluster.Others(names[spared]))
}

func killAll(ctx context.Context, a *act) error { return a.killMany(ctx, a.Cluster.Names()) }

func (a *act) killMany(ctx context.Context, names []string) error {
	if !a.take(names...) {
		return nil
	}
	defer a.release(names...)
	a.target = fmt.Sprintf("%d", len(names))
	if err := a.kill(names...); err != nil {
		return err
	}
	a.hold(ctx, time.Millisecond, time.Second)
	return a.revive(ctx, names...)
}

func restart(ctx context.Context, a *act) error {
	names := a.Cluster.Names()
	name := names[a.rng.IntN(len(names))]
	if !a.take(name) {
		return nil
	}
	defer a.release(name)
	a.target = name
	if err := a.Cluster.Terminate(name); err != nil {
		return err
	}
	a.saw("stopped")
	a.hold(ctx, time.Millisecond, time.Second)
	return a.revive(ctx, name)
}

// pauseLeader stops a leader. Reads that wait for it since after the next leader's
// first pushes were acknowledged are the first that it meets when it goes on: they
// must not show what it remembers.
func pauseLeader(ctx context.Context, a *act) error {
	shard, l, err := a.leader(ctx)
	if err != nil || !a.take(l.Server) {
		return err
	}
	defer a.release(l.Server)
	look, err := a.Load.Onlook(ctx, shard, func(ctx context.Context) (net.Conn, error) {
		return a.Cluster.Connect(ctx, l.Server, false)
	})
	if err != nil {
		return err
	}
	defer look.Close()
	readCtx, cancel := context.WithTimeout(ctx, 2*longestPause)
	defer cancel()
	_ = look.Read(readCtx) // makes the connection
	a.target = l.Server
	if err := a.Cluster.Pause(l.Server); err != nil {
		return err
	}
	a.hold(ctx, shortestPause, longestPause)
	if a.Cluster.Paused(l.Server) {
		a.saw("stopped")
	}
	var reads sync.WaitGroup
	for range waitingReads {
		// The socket takes the request; its answer may be a refusal.
		reads.Go(func() { _ = look.Read(readCtx) })
	}
	sleep(ctx, 10*time.Millisecond)
	err = a.Cluster.Continue(l.Server)
	reads.Wait()
	if now, ok := a.Watch.Leader(shard); ok && now.Term > l.Term {
		a.saw("shard %d: %s leads term %d", shard, now.Server, now.Term)
	}
	return err
}

const waitingReads = 4

func pauseFollower(ctx context.Context, a *act) error {
	name, err := a.follower(ctx)
	if err != nil || !a.take(name) {
		return err
	}
	defer a.release(name)
	return a.pause(ctx, name)
}

func (a *act) pause(ctx context.Context, name string) error {
	a.target = name
	if err := a.Cluster.Pause(name); err != nil {
		return err
	}
	a.hold(ctx, shortestPause, longestPause)
	if a.Cluster.Paused(name) {
		a.saw("stopped")
	}
	return a.Cluster.Continue(name)
}

// direction of a cut, seen from its target.
type direction int

const (
	both direction = iota
	inward
	outward
)

func links(d direction, target string, others []string) []cluster.Link {
	t := []string{target}
	switch d {
	case inward:
		return cluster.OneWay(others, t)
	case outward:
		return cluster.OneWay(t, others)
	}
	return cluster.Between(t, others)
}

// cut drops what is sent on links for a while. What was held back arrives late, or,
// every other time, connections are reset when the cut heals.
func (a *act) cut(ctx context.Context, ls []cluster.Link, during func()) {
	before := a.Net.Stats(ls...)
	lift := a.Net.Apply(cluster.LinkPolicy{Drop: true}, ls...)
	if during != nil {
		during()
	}
	a.hold(ctx, shortest, longest)
	if a.rng.IntN(2) == 0 {
		for _, l := range ls {
			a.Net.ResetAll(l.From, l.To)
		}
	}
	lift()
	if held := a.Net.Stats(ls...).Held - before.Held; held > 0 {
		a.saw("%d bytes held back", held)
	}
}

func cutLeader(d direction, clientsToo bool) func(context.Context, *act) error {
	return func(ctx context.Context, a *act) error {
		shard, l, err := a.leader(ctx)
		if err != nil {
			return err
		}
		a.target = l.Server
		others := a.Cluster.Others(l.Server)
		if clientsToo {
			others = append(others, cluster.Client)
		}
		a.cut(ctx, links(d, l.Server, others), func() { a.sawNewLeader(ctx, shard, l, leaderSeen) })
		return nil
	}
}

func cutFollower(d direction) func(context.Context, *act) error {
	return func(ctx context.Context, a *act) error {
		name, err := a.follower(ctx)
		if err != nil {
			return err
		}
		a.target = name
		a.cut(ctx, links(d, name, a.Cluster.Others(name)), nil)
		return nil
	}
}

func bridge(ctx context.Context, a *act) error {
	names := a.Cluster.Names()
	a.rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	a.target = names[0] + "|" + names[1]
	a.cut(ctx, cluster.Between(names[:1], names[1:2]), nil)
	return nil
}

func refuse(ctx context.Context, a *act) error {
	shard, l, err := a.leader(ctx)
	if err != nil {
		return err
	}
	a.target = l.Server
	ls := links(both, l.Server, a.Cluster.Others(l.Server))
	before := a.Net.Stats(ls...)
	lift := a.Net.Apply(cluster.LinkPolicy{Reset: true}, ls...)
	a.sawNewLeader(ctx, shard, l, leaderSeen)
	a.hold(ctx, shortest, longest)
	lift()
	if n := a.Net.Stats(ls...).Resets - before.Resets; n > 0 {
		a.saw("%d connections reset", n)
	}
	return nil
}

func delayed(a *act) cluster.LinkPolicy {
	ms := time.Duration(1+a.rng.IntN(40)) * time.Millisecond
	return cluster.LinkPolicy{Delay: ms, Jitter: ms}
}

func lossy(a *act) cluster.LinkPolicy {
	return cluster.LinkPolicy{Loss: 0.01 + 0.19*a.rng.Float64(), Jitter: 2 * time.Millisecond}
}

func shape(policy func(*act) cluster.LinkPolicy) func(context.Context, *act) error {
	return func(ctx context.Context, a *act) error {
		a.target = "all"
		a.shape(ctx, policy(a), cluster.OneWay(a.Cluster.Names(), a.Cluster.Names()))
		return nil
	}
}

func (a *act) shape(ctx context.Context, p cluster.LinkPolicy, ls []cluster.Link) {
	before := a.Net.Stats(ls...)
	lift := a.Net.Apply(p, ls...)
	a.hold(ctx, 2*shortest, longest)
	lift()
	if n := a.Net.Stats(ls...).Delayed - before.Delayed; n > 0 {
		a.saw("%d bytes late", n)
	}
}

func slowLink(ctx context.Context, a *act) error {
	shard, l, err := a.leader(ctx)
	if err != nil {
		return err
	}
	to := a.follows(ctx, shard, l.Server)
	a.target = l.Server + "→" + to
	a.shape(ctx, cluster.LinkPolicy{BytesPerSecond: 20_000 + a.rng.IntN(180_000)},
		cluster.OneWay([]string{l.Server}, []string{to}))
	return nil
}

func resetStorm(ctx context.Context, a *act) error {
	a.target = "all"
	n := 0
	for range 3 + a.rng.IntN(12) {
		n += a.Net.ResetAll("", "")
		a.hold(ctx, 20*time.Millisecond, 250*time.Millisecond)
	}
	if n > 0 {
		a.saw("%d connections reset", n)
	}
	return nil
}

// clientCut cuts all clients from a leader: wholly, or only its answers to them, so
// that pushes are applied without an answer.
func clientCut(wholly bool) func(context.Context, *act) error {
	return func(ctx context.Context, a *act) error {
		_, l, err := a.leader(ctx)
		if err != nil {
			return err
		}
		a.target = l.Server
		d := outward
		if wholly {
			d = both
		}
		a.cut(ctx, links(d, l.Server, []string{cluster.Client}), nil)
		return nil
	}
}

// lateBy is what a leader of the fast profile stands: its lease of 125 ms counts from
// the answers.
const lateBy = 60 * time.Millisecond

// lateAnswers makes what others send to a leader late, then holds back what it sends
// to them: they elect another while it still hears from before that they follow it.
func lateAnswers(ctx context.Context, a *act) error {
	shard, l, err := a.leader(ctx)
	if err != nil {
		return err
	}
	a.target = l.Server
	others := a.Cluster.Others(l.Server)
	late := a.Net.Apply(cluster.LinkPolicy{Delay: lateBy}, links(inward, l.Server, others)...)
	defer late()
	a.hold(ctx, time.Second, 2*time.Second)
	a.cut(ctx, links(outward, l.Server, others), func() { a.sawNewLeader(ctx, shard, l, leaderSeen) })
	return nil
}
