package trainer

import (
	"context"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/trainer/data"
)

// awayGiver is a giver whose scheduler can be away: calls wait for it as those of a client do, until their context ends.
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

func (g *awayGiver) NextPart(ctx context.Context, take int64, ahead int) (client.Part, error) {
	if err := g.wait(ctx); err != nil {
		return client.Part{}, err
	}
	return g.giver.NextPart(ctx, take, ahead)
}

func (g *awayGiver) EndPart(ctx context.Context, p client.Part) error {
	if err := g.wait(ctx); err != nil {
		return err
	}
	return g.giver.EndPart(ctx, p)
}

// While the scheduler is away for longer than parts take, a trainer reads the parts that it has ahead, then waits without
// limit; what it has trained meanwhile is ended once, when the scheduler is back, and not before the run ends. The
// parts that it has not begun count as not read: another trainer gets them whole if this one dies.
func TestTrainingGoesOnWithThePartsAhead(t *testing.T) {
	const batch, perPart = 10, 10 // examples a batch, batches a part
	set := testGenerator(t, 10*batch*perPart)
	synctest.Test(t, func(t *testing.T) {
		g := &awayGiver{giver: giver{plan: client.PartPlan{Examples: 10 * batch * perPart, PartExamples: batch * perPart, Epochs: 1}}, here: make(chan struct{}, 1)}
		g.here <- struct{}{}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		d := &dataParts{set: set, giver: g, ctx: ctx}
		w := &work{data: data.NewBatch(batch, set.Shape())}
		var first []int64
		train := func() error { // one batch, which takes a second
			err := d.next(w)
			if err == nil {
				first = append(first, w.data.First)
				time.Sleep(time.Second)
				err = d.covered(w.piece)
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
			if err := train(); err != nil && err != errNotYet {
				t.Fatal(err)
			}
		}
		if len(first) != (1+partsAhead)*perPart || len(g.ended) > 0 {
			t.Errorf("%d batches were trained without the scheduler, parts %v were ended; want the first part and %d ahead", len(first), g.ended, partsAhead)
		}
		reached := d.reached()
		if len(reached) != 1+partsAhead || slices.ContainsFunc(reached, func(p client.PartReached) bool { return p.Acknowledged != batch*perPart }) {
			t.Errorf("what others would go on from, if it died: %v, want the end of each", reached)
		}
		g.here <- struct{}{}
		err := errNotYet
		for err == nil || err == errNotYet {
			err = train()
		}
		if err != io.EOF {
			t.Fatal(err)
		}
		if err := d.flush(ctx); err != nil {
			t.Fatal(err)
		}
		if slices.Sort(first); len(first) != 10*perPart || len(slices.Compact(first)) != len(first) {
			t.Errorf("%d batches, want each of %d once", len(first), 10*perPart)
		}
		if slices.Sort(g.ended); !slices.Equal(g.ended, []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
			t.Errorf("parts %v were ended, want each once", g.ended)
		}
		d.close()
	})
}

// The end of a run waits for the scheduler to hear of the last parts; a run that is told to stop does not.
func TestARunEndsWhenTheSchedulerKnowsItsParts(t *testing.T) {
	set := testGenerator(t, 20)
	for _, stopped := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			g := &awayGiver{giver: giver{plan: client.PartPlan{Examples: 20, PartExamples: 20, Epochs: 1}}, here: make(chan struct{}, 1)}
			g.here <- struct{}{}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			d := &dataParts{set: set, giver: g, ctx: ctx}
			w := &work{data: data.NewBatch(20, set.Shape())}
			if err := d.next(w); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			<-g.here
			if err := d.covered(w.piece); err != nil {
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
			if err := d.flush(ctx); err != nil || time.Since(begun) != time.Hour || stopped != (len(g.ended) == 0) {
				t.Errorf("stopped %v: %v after %v, parts %v ended", stopped, err, time.Since(begun), g.ended)
			}
			d.close()
		})
	}
}

// refusingGiver gives one part and refuses to end it.
type refusingGiver struct {
	giver
}

func (g *refusingGiver) EndPart(context.Context, client.Part) error {
	return rowraft.Errorf(rowraft.CodeSessionExpired, "it is no member any more")
}

// A trainer that is no member any more learns it from whatever it does next.
func TestARefusedEndOfAPartEndsTheRun(t *testing.T) {
	set := testGenerator(t, 100)
	synctest.Test(t, func(t *testing.T) {
		d := &dataParts{set: set, giver: &refusingGiver{giver: giver{plan: client.PartPlan{Examples: 100, PartExamples: 20, Epochs: 1}}}, ctx: t.Context()}
		defer d.close()
		w := &work{data: data.NewBatch(20, set.Shape())}
		if err := d.next(w); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // it has taken parts ahead
		if err := d.covered(w.piece); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for range partsAhead {
			if err := d.next(w); err != nil {
				t.Fatalf("a part that it has: %v", err)
			}
		}
		for name, err := range map[string]error{"next": d.next(w), "covered": d.covered(w.piece), "flush": d.flush(t.Context())} {
			if rowraft.CodeOf(err) != rowraft.CodeSessionExpired {
				t.Errorf("%s: %v, want SessionExpired", name, err)
			}
		}
	})
}
