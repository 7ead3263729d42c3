package nemesis

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/e2e/cluster"
	"github.com/rowraft/rowraft/e2e/history"
	"github.com/rowraft/rowraft/e2e/load"
)

// Cluster is the servers: processes (package cluster) or nodes in this one
// (package sim).
type Cluster interface {
	Names() []string
	Others(but ...string) []string

	// Kill ends servers at one moment, as SIGKILL does, or worse.
	Kill(names ...string) error
	// Terminate ends a server in order.
	Terminate(name string) error
	Running(name string) bool
	// RestartAll starts servers that have ended and returns when all serve.
	RestartAll(ctx context.Context, names ...string) error

	// Pause stops a server until Continue; Paused reports that it stands still.
	Pause(name string) error
	Continue(name string) error
	Paused(name string) bool

	// Connect opens a connection to a port of a server, past all that is done to
	// the network.
	Connect(ctx context.Context, name string, peerPort bool) (net.Conn, error)
}

// Network is the links between servers and clients.
type Network interface {
	Apply(policy cluster.LinkPolicy, links ...cluster.Link) (lift func())
	Stats(links ...cluster.Link) cluster.LinkStats
	ResetAll(a, b string) int
}

// Watch knows who leads.
type Watch interface {
	Leader(shard rowraft.ShardID) (cluster.Leader, bool)
	// AwaitChange waits until a shard's leader is of a term above and returns it.
	AwaitChange(ctx context.Context, shard rowraft.ShardID, above rowraft.Term) (cluster.Leader, error)
}

// World is what faults are done to.
type World struct {
	Cluster  Cluster
	Net      Network
	Watch    Watch
	Load     *load.Load
	Recorder *history.Recorder
	Machines Machines // nil if servers are processes
	Shards   int

	Checkpoints string     // directory for checkpoints that all servers reach; "": none
	Hung        *HungStore // that the servers take for S3; nil: none

	Log func(format string, args ...any) // one line for a person

	// ShortLogBytes is after how much log of a shard a follower needs a snapshot; 0:
	// unknown, and the fault "install" is left out.
	ShortLogBytes int64

	mu       sync.Mutex
	busy     map[string]bool // servers whose process a fault holds
	counts   map[string]*Count
	active   map[*act]bool // that are being done
	problems []string
}

// Count is how often a kind was tried and seen to have an effect.
type Count struct {
	Tried    int `json:"tried"`
	Observed int `json:"observed"`
	Stood    int `json:"stood"` // of the observed: until the heal
}

// Idle says that a kind was tried often enough to have had an effect, and had none.
// One that meets another fault may well have none: of the link of a leader that dies
// the next moment nothing is late.
func (c Count) Idle() bool { return c.Tried > 4 && c.Observed == 0 }

// act is one fault being done.
type act struct {
	*World
	rng      *rand.Rand
	target   string
	observed []string
	skipped  bool

	gentle    bool // nothing but jobs and checkpoints
	disturbed bool // another act, and not a gentle one, was done meanwhile; guarded by World.mu

	heal  <-chan struct{} // closed when a fault that stands must end; nil: it ends by itself
	stood chan<- struct{} // is told once that the fault stands
}

// fault is one kind.
type fault struct {
	kind  string
	about string
	do    func(context.Context, *act) error
	// stands says that the fault can be left as it is until everything is healed: it
	// calls hold once.
	stands bool
}

// Kinds lists the kinds of faults and what they are.
func Kinds() map[string]string {
	out := make(map[string]string)
	for _, f := range every() {
		out[f.kind] = f.about
	}
	return out
}

// Pick returns the kinds that list names ("all", or names separated by commas).
// Those that need Machines are among them if machines says that there are some.
func Pick(list string, machines bool) ([]string, error) {
	all := slices.Sorted(maps.Keys(Kinds()))
	if !machines {
		all = slices.DeleteFunc(all, func(kind string) bool {
			return slices.ContainsFunc(machineFaults, func(f fault) bool { return f.kind == kind })
		})
	}
	if list == "" || list == "all" {
		return all, nil
	}
	var out []string
	for _, name := range strings.Split(list, ",") {
		if !slices.Contains(all, name) {
			return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "fault %q: want all, or some of %s", name,
				strings.Join(all, ", "))
		}
		out = append(out, name)
	}
	return out, nil
}

// Schedule draws faults from a seed. Every kind comes once before any comes again.
type Schedule struct {
	rng      *rand.Rand
	all      bag
	standing bag
}

// bag gives each of its kinds once before it gives any again.
type bag struct{ kinds, left []string }

// NewSchedule returns the schedule of a seed.
func NewSchedule(seed uint64, kinds []string) *Schedule {
	s := &Schedule{rng: rand.New(rand.NewPCG(seed, 0x6e656d65736973)), all: bag{kinds: kinds}}
	for _, f := range every() {
		if f.stands && slices.Contains(kinds, f.kind) {
			s.standing.kinds = append(s.standing.kinds, f.kind)
		}
	}
	return s
}

// draw takes the next kind out of b, "" if it is not.
func (s *Schedule) draw(b *bag, not string) string {
	if len(b.left) == 0 {
		b.left = slices.Clone(b.kinds)
		s.rng.Shuffle(len(b.left), func(i, j int) { b.left[i], b.left[j] = b.left[j], b.left[i] })
	}
	k := b.left[0]
	b.left = b.left[1:]
	if k == not {
		return ""
	}
	return k
}

// step is one or two faults, the second a moment after the first.
type step struct {
	kinds []string
	seeds []uint64
	apart time.Duration
	rest  time.Duration // after them
}

func (s *Schedule) next() step {
	st := step{kinds: []string{s.draw(&s.all, "")}, rest: time.Duration(50+s.rng.IntN(300)) * time.Millisecond}
	if s.rng.IntN(2) == 0 {
		if second := s.draw(&s.all, st.kinds[0]); second != "" {
			st.kinds = append(st.kinds, second)
		}
	}
	st.apart = time.Duration(s.rng.IntN(600)) * time.Millisecond
	for range st.kinds {
		st.seeds = append(st.seeds, s.rng.Uint64())
	}
	return st
}

// Run does faults from s until until is over. A fault begun is ended first.
func (w *World) Run(ctx context.Context, s *Schedule, until time.Time) {
	for time.Now().Before(until) && ctx.Err() == nil {
		st := s.next()
		var wg sync.WaitGroup
		for i, kind := range st.kinds {
			if i > 0 && !sleep(ctx, st.apart) {
				break
			}
			wg.Go(func() { w.one(ctx, kind, &act{rng: rand.New(rand.NewPCG(st.seeds[i], 1))}) })
		}
		wg.Wait()
		sleep(ctx, st.rest)
	}
}

// Of the faults that stand at one time.
const (
	fewestStanding = 2
	mostStanding   = 4
	standUp        = 5 * time.Second // to get there
	leastStanding  = time.Second
	mostMore       = 2500 * time.Millisecond
)

// Stand does faults and leaves them: cuts stay, processes stay stopped or dead. The
// function it returns ends them all at once and does not wait; ended is closed when
// they are gone and all servers serve.
func (w *World) Stand(ctx context.Context, s *Schedule) (heal func(), ended <-chan struct{}) {
	end, done := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	var up []<-chan struct{}
	for range min(fewestStanding+s.rng.IntN(mostStanding-fewestStanding+1), len(s.standing.kinds)) {
		stood, over := make(chan struct{}, 1), make(chan struct{})
		a := &act{rng: rand.New(rand.NewPCG(s.rng.Uint64(), 1)), heal: end, stood: stood}
		kind := s.draw(&s.standing, "")
		wg.Go(func() {
			defer close(over)
			w.one(ctx, kind, a)
		})
		up = append(up, either(stood, over))
	}
	rest := leastStanding + time.Duration(s.rng.Int64N(int64(mostMore)))
	late, cancel := context.WithTimeout(ctx, standUp)
	defer cancel()
	for _, c := range up {
		select {
		case <-c:
		case <-late.Done():
		}
	}
	if len(up) > 0 {
		sleep(ctx, rest)
	}
	go func() { wg.Wait(); close(done) }()
	return sync.OnceFunc(func() { close(end) }), done
}

// either is closed when one of the two channels has something to say.
func either(a, b <-chan struct{}) <-chan struct{} {
	out := make(chan struct{})
	go func() {
		defer close(out)
		select {
		case <-a:
		case <-b:
		}
	}()
	return out
}

// one does one fault and records it.
func (w *World) one(ctx context.Context, kind string, a *act) {
	a.World = w
	kinds := every()
	i := slices.IndexFunc(kinds, func(f fault) bool { return f.kind == kind })
	w.begin(kind, a)
	defer w.end(a)
	op := history.Op{Kind: history.Fault, Client: -1, Fault: kind, Call: w.Recorder.Now()}
	err := kinds[i].do(ctx, a)
	if a.skipped {
		return
	}
	if a.heal != nil && len(a.observed) > 0 {
		a.saw("stood until the heal")
	}
	op.Return, op.Target, op.Observed = w.Recorder.Now(), a.target, strings.Join(a.observed, "; ")
	op.Outcome = history.Refused
	if len(a.observed) > 0 {
		op.Outcome = history.OK
	}
	if err != nil {
		op.Error = err.Error()
	}
	w.Recorder.Add(op)
	w.mu.Lock()
	if w.counts == nil {
		w.counts = make(map[string]*Count)
	}
	if w.counts[kind] == nil {
		w.counts[kind] = &Count{}
	}
	w.counts[kind].Tried++
	if len(a.observed) > 0 {
		w.counts[kind].Observed++
		if a.heal != nil {
			w.counts[kind].Stood++
		}
	}
	if err != nil && ctx.Err() == nil {
		w.problems = append(w.problems, fmt.Sprintf("fault %s on %s: %v", kind, a.target, err))
	}
	w.mu.Unlock()
	shown := op.Observed
	if err != nil {
		shown = "FAILED: " + err.Error()
	} else if shown == "" {
		shown = "no effect seen"
	}
	w.Log("%-18s %-8s %.1fs  %s", kind, a.target, time.Duration(op.Return-op.Call).Seconds(), shown)
}

// gentle are the kinds that do nothing to servers, disks and links.
var gentle = []string{"invented-jobs", "hung-destination"}

func (w *World) begin(kind string, a *act) {
	a.gentle = slices.Contains(gentle, kind)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.active == nil {
		w.active = make(map[*act]bool)
	}
	for other := range w.active {
		other.disturbed = other.disturbed || !a.gentle
		a.disturbed = a.disturbed || !other.gentle
	}
	w.active[a] = true
}

func (w *World) end(a *act) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.active, a)
}

// alone reports that no other fault was done to servers, disks or links meanwhile.
func (a *act) alone() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.disturbed
}

// Counts returns tried and observed faults by kind.
func (w *World) Counts() map[string]Count {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make(map[string]Count)
	for k, c := range w.counts {
		out[k] = *c
	}
	return out
}

// Problems lists what a fault found wrong by itself.
func (w *World) Problems() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.problems)
}

// take reserves the processes of servers; false if another fault has one.
func (a *act) take(names ...string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.busy == nil {
		a.busy = make(map[string]bool)
	}
	for _, n := range names {
		if a.busy[n] {
			a.skipped = true
			return false
		}
	}
	for _, n := range names {
		a.busy[n] = true
	}
	return true
}

func (a *act) release(names ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range names {
		delete(a.busy, n)
	}
}

func (a *act) saw(format string, args ...any) {
	a.observed = append(a.observed, fmt.Sprintf(format, args...))
}

// leader waits for the leader of a random shard.
func (a *act) leader(ctx context.Context) (shard rowraft.ShardID, l cluster.Leader, err error) {
	shard = rowraft.ShardID(a.rng.IntN(a.Shards))
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	l, err = a.Watch.AwaitChange(ctx, shard, 0)
	return shard, l, err
}

// follower picks a server that does not lead a random shard.
func (a *act) follower(ctx context.Context) (string, error) {
	_, l, err := a.leader(ctx)
	others := a.Cluster.Others(l.Server)
	return others[a.rng.IntN(len(others))], err
}

// follows picks a server that has a replica of shard and does not lead it, any that
// does not lead it if the scheduler does not say.
func (a *act) follows(ctx context.Context, shard rowraft.ShardID, leader string) string {
	names := a.Cluster.Others(leader)
	if m, ok := a.Cluster.(mover); ok {
		ctx, cancel := context.WithTimeout(ctx, moveStart)
		defer cancel()
		if p, err := m.Placement(ctx); err == nil {
			has := slices.DeleteFunc(slices.Clone(names), func(s string) bool { return !slices.Contains(p.Replicas[shard], s) })
			if len(has) > 0 {
				names = has
			}
		}
	}
	return names[a.rng.IntN(len(names))]
}

// hold waits for a random time between the two, or, if the fault stands, for the
// heal.
func (a *act) hold(ctx context.Context, least, most time.Duration) {
	if a.heal != nil {
		select {
		case a.stood <- struct{}{}:
		default:
		}
		select {
		case <-a.heal:
		case <-ctx.Done():
		}
		return
	}
	sleep(ctx, least+time.Duration(a.rng.Int64N(int64(most-least))))
}

// sawNewLeader waits a while for another leader of shard, and reports whether there is one.
func (a *act) sawNewLeader(ctx context.Context, shard rowraft.ShardID, old cluster.Leader,
	patience time.Duration) bool {
	since := time.Now()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	l, err := a.Watch.AwaitChange(ctx, shard, old.Term)
	if err == nil {
		a.saw("shard %d: %s leads term %d after %.2f s", shard, l.Server, l.Term, time.Since(since).Seconds())
	}
	return err == nil
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
