package jobs

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

const (
	// shardTimeout bounds the calls to all shards for one run.
	shardTimeout = 5 * time.Second
	// maxRests bounds the runs that the shards forget in one round, because the check of the leases waits for the round.
	maxRests = 8
)

// generation is a set of members that workers may learn of.
type generation struct {
	number    uint64
	ranks     []uint32
	firstStep uint64
}

// generations brings the members of the runs to the shards. The goroutine of Service.Run calls round and startTerm.
//
// Its memory is soft state: a new leader sends the generations again, which changes nothing in a shard that has them.
type generations struct {
	env

	// drive sends a generation to every shard and returns its first step.
	drive func(ctx context.Context, r *rowraftv1.MetaRun) (firstStep uint64, err error)
	// positions asks every shard for the positions in a run's data.
	positions func(ctx context.Context, run []byte) ([]meta.ShardPositions, error)
	// end lets every shard forget a run.
	end func(ctx context.Context, run []byte) error
	// rest lets every shard forget a run in which no worker trains, until a worker enters it again.
	rest func(ctx context.Context, r *rowraftv1.MetaRun) error

	mu   sync.Mutex
	term rowraft.Term // of list and rested
	// list holds the newest generation that workers may learn of, by run. Invariant: if the run is in the shards,
	// every shard has received this generation.
	list   map[string]generation
	rested map[string]uint64 // by run: the generation that rest was called for
}

func newGenerations(e env) *generations {
	s := shards{e}
	return &generations{env: e, drive: s.drive, positions: s.positions, end: s.end, rest: s.rest}
}

// round sends new generations to the shards, reads the positions of workers that left, and lets the shards forget runs.
func (g *generations) round(ctx context.Context) {
	for _, r := range g.machine.Runs() {
		if err := g.driveNew(ctx, r); err != nil && ctx.Err() == nil {
			g.logger.Warn("the members of a job are not known to all shards yet; trying again", "job", r.GetJob(), "generation",
				r.GetGeneration(), "err", err)
		}
	}
	for _, r := range g.machine.Runs() {
		if err := g.settleSplits(ctx, r); err != nil && ctx.Err() == nil {
			g.logger.Warn("the position of a worker in its data is not known yet; trying again", "job", r.GetJob(), "err", err)
		}
	}
	for _, run := range g.machine.EndedRuns() {
		if err := g.forget(ctx, run); err != nil && ctx.Err() == nil {
			g.logger.Debug("not all shards have forgotten a run that has ended", "err", err)
			break // the remaining runs wait for the same shards, and the next check of the leases waits for this round
		}
	}
	g.restIdle(ctx)
}

func (g *generations) startTerm(term rowraft.Term) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.term != term || g.list == nil {
		g.term, g.list, g.rested = term, make(map[string]generation), make(map[string]uint64)
	}
}

func (g *generations) of(run []byte) generation {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.list[string(run)]
}

// forget lets the shards forget a run and then logs that none of them knows it.
func (g *generations) forget(ctx context.Context, run []byte) error {
	ctx, cancel := context.WithTimeout(ctx, shardTimeout)
	defer cancel()
	// The shards first: if this leader dies in between, the run is still in the list and the next leader repeats the call,
	// which changes nothing.
	if err := g.end(ctx, run); err != nil {
		return err
	}
	return g.lead.Propose(ctx,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_ForgetRun{ForgetRun: &rowraftv1.MetaForgetRun{Run: run}}})
}

// restIdle lets the shards forget the runs in which no worker trains.
func (g *generations) restIdle(ctx context.Context) {
	n := 0
	for _, r := range g.machine.Runs() {
		if !r.GetInShards() || r.GetGeneration() == 0 || r.GetState() == rowraftv1.JobState_JOB_STATE_DONE ||
			len(meta.TrainingRanks(r)) > 0 || meta.HasUnsettled(r) || g.rests(r) {
			continue
		}
		if n++; n > maxRests {
			return
		}
		if err := g.restOne(ctx, r); err != nil {
			if ctx.Err() == nil {
				g.logger.Debug("not all shards have forgotten a run without training workers", "job", r.GetJob(), "err", err)
			}
			return // the remaining runs wait for the same shards
		}
	}
}

func (g *generations) rests(r *rowraftv1.MetaRun) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.rested[string(r.GetRun())] == r.GetGeneration()
}

func (g *generations) restOne(ctx context.Context, r *rowraftv1.MetaRun) error {
	ctx, cancel := context.WithTimeout(ctx, shardTimeout)
	defer cancel()
	if err := g.rest(ctx, r); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rested[string(r.GetRun())] = r.GetGeneration()
	return nil
}

// driveNew sends the current generation of a run first to the shards. Only then do workers learn of it, so that
// no worker pushes with members that a shard does not know.
func (g *generations) driveNew(ctx context.Context, r *rowraftv1.MetaRun) error {
	next := generation{number: r.GetGeneration(), ranks: meta.TrainingRanks(r)}
	toSettle := len(next.ranks) == 0 && meta.HasUnsettled(r)
	if next.number == 0 || r.GetGathering() && !toSettle || g.of(r.GetRun()).number >= next.number {
		return nil
	}
	if r.GetInShards() && (len(next.ranks) > 0 || toSettle) {
		ctx, cancel := context.WithTimeout(ctx, shardTimeout)
		defer cancel()
		var err error
		if next.firstStep, err = g.drive(ctx, r); err != nil {
			return err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.list[string(r.GetRun())] = next
	return nil
}

// settleSplits asks all shards how far workers that left were in their splits, and makes the splits available to
// others. The positions are final: every shard has the present generation, and each shard's share of a push names its
// worker, so the shards refuse all later pushes of those workers. For a run without training workers, settleSplits asks
// before the shards forget the run.
func (g *generations) settleSplits(ctx context.Context, r *rowraftv1.MetaRun) error {
	if g.of(r.GetRun()).number != r.GetGeneration() || !meta.HasUnsettled(r) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, shardTimeout)
	defer cancel()
	shards, err := g.positions(ctx, r.GetRun())
	if err != nil {
		return err
	}
	return g.lead.Propose(ctx,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_SettleSplits{SettleSplits: &rowraftv1.MetaSettleSplits{
			Job: r.GetJob(), Run: r.GetRun(), Splits: meta.SettledSplits(r.GetData(), shards),
		}}})
}

// has reports whether generation g may be sent to a rank. A training rank must be a member of g: a worker that returns
// to a stopped job waits for the others, while the current generation is still the empty one.
func (g generation) has(r *rowraftv1.MetaRun, rank uint32) bool {
	i, found := meta.FindMember(r, rank)
	return !found || !meta.IsTraining(r.GetMembers()[i]) || slices.Contains(g.ranks, rank)
}
