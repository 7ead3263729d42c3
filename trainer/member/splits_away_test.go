package member

import (
	"context"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/trainer/data"
)

// awayGiver is a giver whose scheduler can be away: calls wait for it until their context ends, like those of a
// client.
type awayGiver struct {
	giver
	here chan struct{} // capacity 1: full while the scheduler is there
}

func (g *awayGiver) wait(ctx context.Context) error {
	select {
	case <-g.here:
		g.here <- struct{}{}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *awayGiver) NextSplit(ctx context.Context, take int64, ahead int) (jobs.Split, error) {
	if err := g.wait(ctx); err != nil {
		return jobs.Split{}, err
	}
	return g.giver.NextSplit(ctx, take, ahead)
}

func (g *awayGiver) EndSplit(ctx context.Context, p jobs.Split) error {
	if err := g.wait(ctx); err != nil {
		return err
	}
	return g.giver.EndSplit(ctx, p)
}

// While the scheduler is away for longer than a split takes, a trainer reads the splits that it has ahead, then
// waits without limit. It ends each trained split once, when the scheduler is back, and before the run ends. Splits
// that it has not begun count as not read: if this trainer dies another one gets them whole.
func TestTrainingGoesOnWithThePartsAhead(t *testing.T) {
	const batch, perPart = 10, 10 // examples a batch, batches a part
	set := testGenerator(t, 10*batch*perPart)
	synctest.Test(t, func(t *testing.T) {
		g := &awayGiver{giver: giver{plan: jobs.SplitPlan{Examples: 10 * batch * perPart,
			SplitExamples: batch * perPart, Epochs: 1}}, here: make(chan struct{}, 1)}
		g.here <- struct{}{}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		d := newSplits(ctx, set, g)
		b := data.NewBatch(batch, set.Shape())
		var first []int64
		train := func() error { // one batch, which takes a second
			r, err := d.Next(b)
			if err == nil {
				first = append(first, b.First)
				time.Sleep(time.Second)
				err = r.Range.Done()
			}
			return err
		}
		for range perPart / 2 {
			if err := train(); err != nil {
				t.Fatal(err)
			}
		}
		<-g.here // the scheduler dies in the middle of the first part
		for begun := time.Now(); time.Since(begun) < time.Hour; {
			if err := train(); err != nil && err != data.ErrNoneYet {
				t.Fatal(err)
			}
		}
		if len(first) != (1+splitsAhead)*perPart || len(g.ended) > 0 {
			t.Errorf("%d batches were trained without the scheduler, parts %v were ended; want the first and %d ahead",
				len(first), g.ended, splitsAhead)
		}
		reached := d.Reached()
		if len(reached) != 1+splitsAhead || slices.ContainsFunc(reached,
			func(p jobs.SplitReached) bool { return p.Acknowledged != batch*perPart }) {
			t.Errorf("where others would continue, if it died: %v, want the end of each", reached)
		}
		g.here <- struct{}{}
		err := data.ErrNoneYet
		for err == nil || err == data.ErrNoneYet {
			err = train()
		}
		if err != io.EOF {
			t.Fatal(err)
		}
		if err := d.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		if slices.Sort(first); len(first) != 10*perPart || len(slices.Compact(first)) != len(first) {
			t.Errorf("%d batches, want each of %d once", len(first), 10*perPart)
		}
		if slices.Sort(g.ended); !slices.Equal(g.ended, []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
			t.Errorf("splits %v were ended, want each once", g.ended)
		}
		d.Close()
	})
}

// The end of a run waits until the scheduler knows the last splits; a run with a stop request does not.
func TestARunEndsWhenTheSchedulerKnowsItsParts(t *testing.T) {
	set := testGenerator(t, 20)
	for _, stopped := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			g := &awayGiver{giver: giver{plan: jobs.SplitPlan{Examples: 20, SplitExamples: 20, Epochs: 1}},
				here: make(chan struct{}, 1)}
			g.here <- struct{}{}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			d := newSplits(ctx, set, g)
			b := data.NewBatch(20, set.Shape())
			r, err := d.Next(b)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			<-g.here
			if err := r.Range.Done(); err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			time.AfterFunc(time.Hour, func() {
				if stopped {
					cancel()
					return
				}
				g.here <- struct{}{}
			})
			if err := d.Flush(ctx); err != nil || time.Since(begun) != time.Hour || stopped != (len(g.ended) == 0) {
				t.Errorf("stopped %v: %v after %v, parts %v ended", stopped, err, time.Since(begun), g.ended)
			}
			d.Close()
		})
	}
}

// sharedParts are the splits of a job of several trainers, as the scheduler stores them.
type sharedParts struct {
	mu    sync.Mutex
	free  []jobs.Split
	taken map[int64]string // by whom
	ended map[int64]string
}

// lost frees the splits of a trainer for others, from the positions that the scheduler knows.
func (s *sharedParts) lost(name string, plan jobs.SplitPlan, known []jobs.SplitReached) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for part, by := range s.taken {
		if by != name {
			continue
		}
		delete(s.taken, part)
		p := jobs.Split{Number: part, From: part * plan.SplitExamples, To: (part + 1) * plan.SplitExamples}
		for _, r := range known {
			if r.Number == part {
				p.Offset = r.Acknowledged
			}
		}
		s.free = append(s.free, p)
	}
}

// sharer is the scheduler as one of the trainers sees it.
type sharer struct {
	*sharedParts
	name string
	away *awayGiver
}

func (g *sharer) NextSplit(ctx context.Context, _ int64, _ int) (jobs.Split, error) {
	if err := g.away.wait(ctx); err != nil {
		return jobs.Split{}, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.free) == 0 {
		for _, by := range g.taken {
			if by != g.name {
				return jobs.Split{}, jobs.ErrSplitsHeld
			}
		}
		return jobs.Split{}, jobs.ErrNoSplits
	}
	p := g.free[0]
	g.free, g.taken[p.Number] = g.free[1:], g.name
	return p, nil
}

func (g *sharer) EndSplit(ctx context.Context, p jobs.Split) error {
	if err := g.away.wait(ctx); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.taken[p.Number] != g.name {
		return rowraft.Errorf(rowraft.CodeSessionExpired, "%s is no member any more", g.name)
	}
	delete(g.taken, p.Number)
	g.ended[p.Number] = g.name
	return nil
}

// A trainer dies while the scheduler is away: it has trained a split whose end is not reported, is in the middle of
// another that it had ahead, and has a third ahead. When the scheduler is back the other trainer gets all three.
// Each example is trained, and trained again only if the scheduler did not know it.
func TestATrainerDiesWhileTheSchedulerIsAway(t *testing.T) {
	const batch, perPart, parts = 10, 10, 8
	plan := jobs.SplitPlan{Examples: parts * batch * perPart, SplitExamples: batch * perPart, Epochs: 1}
	set := testGenerator(t, plan.Examples)
	for name, tc := range map[string]struct {
		exact bool // the shards know how far it was; else its last beat, before the scheduler went
		again int  // batches
	}{"by its last beat": {false, 15}, "by the shards": {true, 0}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				here := make(chan struct{}, 1)
				here <- struct{}{}
				s := &sharedParts{taken: make(map[int64]string), ended: make(map[int64]string)}
				for part := range int64(parts) {
					s.free = append(s.free, jobs.Split{Number: part, From: part * plan.SplitExamples,
						To: (part + 1) * plan.SplitExamples})
				}
				var first []int64
				start := func(name string) (d *Splits, train func() error, kill func()) {
					ctx, cancel := context.WithCancel(t.Context())
					d = newSplits(ctx, set, &sharer{s, name, &awayGiver{here: here}})
					b := data.NewBatch(batch, set.Shape())
					return d, func() error {
						r, err := d.Next(b)
						if err == nil {
							first = append(first, b.First)
							time.Sleep(time.Second) //tidy:allow sleep virtual time
							err = r.Range.Done()
						}
						return err
					}, func() { cancel(); d.Close() }
				}
				one, trainOne, kill := start("one")
				two, trainTwo, end := start("two")
				defer end()
				must := func(train func() error, batches int) {
					t.Helper()
					for range batches {
						if err := train(); err != nil {
							t.Fatal(err)
						}
					}
				}
				must(trainOne, perPart/2)
				must(trainTwo, perPart/2)
				known := one.Reached()
				<-here
				must(trainOne, perPart+perPart/2)
				must(trainTwo, (splitsAhead+1)*perPart-perPart/2)
				if err := trainTwo(); err != data.ErrNoneYet || len(s.ended) > 0 {
					t.Fatalf("without the scheduler: %v, parts %v ended", err, s.ended)
				}
				if tc.exact {
					known = one.Reached()
				}
				kill()
				here <- struct{}{}
				s.lost("one", plan, known)
				err := data.ErrNoneYet
				for err == nil || err == data.ErrNoneYet {
					err = trainTwo()
				}
				if err != io.EOF {
					t.Fatal(err)
				}
				if err := two.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
				slices.Sort(first)
				if total, each := len(first), len(slices.Compact(first)); each != parts*perPart ||
					total != each+tc.again {
					t.Errorf("%d of %d batches were trained, %d again, want %d", each, parts*perPart, total-each,
						tc.again)
				}
				for part := range int64(parts) {
					if s.ended[part] != "two" {
						t.Errorf("part %d was ended by %q, want the trainer that is left", part, s.ended[part])
					}
				}
			})
		})
	}
}

// refusingGiver gives one split and refuses to end it.
type refusingGiver struct {
	giver
}

func (g *refusingGiver) EndSplit(context.Context, jobs.Split) error {
	return rowraft.Errorf(rowraft.CodeSessionExpired, "it is no member any more")
}

// A trainer that is no longer a member learns it from its next call.
func TestARefusedEndOfAPartEndsTheRun(t *testing.T) {
	set := testGenerator(t, 100)
	synctest.Test(t, func(t *testing.T) {
		plan := jobs.SplitPlan{Examples: 100, SplitExamples: 20, Epochs: 1}
		d := newSplits(t.Context(), set, &refusingGiver{giver: giver{plan: plan}})
		defer d.Close()
		b := data.NewBatch(20, set.Shape())
		r, err := d.Next(b)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // it has taken parts ahead
		if err := r.Range.Done(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for range splitsAhead {
			if _, err := d.Next(b); err != nil {
				t.Fatalf("a part that it has: %v", err)
			}
		}
		_, err = d.Next(b)
		for name, err := range map[string]error{"next": err, "covered": r.Range.Done(),
			"flush": d.Flush(t.Context())} {
			if rowraft.CodeOf(err) != rowraft.CodeSessionExpired {
				t.Errorf("%s: %v, want SessionExpired", name, err)
			}
		}
	})
}
