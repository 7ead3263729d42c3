package rowstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cmd/rowraft-bench/figures"
	"github.com/rowraft/rowraft/raftstore"
)

// pacedShares of what the shard takes flat out are offered to it.
var pacedShares = []float64{0.25, 0.5}

// pacing is what became of pushes that came at a rate, whatever those before did.
type pacing struct {
	offered, kept int   // due until the end, and acknowledged until then
	times         times // from when a push was due until it was acknowledged
}

// push is one that is under way.
type push struct {
	due    time.Time
	future *raftstore.Future
}

// paced pushes once every interval until done is closed, or for so long if it is nil.
func (g *group) paced(interval time.Duration, done <-chan struct{},
	d time.Duration) (p pacing, took time.Duration, err error) {
	pushes := make(chan push, 1<<16) // more than a run has: who offers does not wait
	acknowledged := make(chan []time.Time, 1)
	failed := make(chan error, 1)
	go func() {
		var at []time.Time
		var errs error
		for q := range pushes {
			result, _, err := q.future.Wait(context.Background())
			switch {
			case rowraft.CodeOf(err) == rowraft.CodeOverloaded:
				continue // not kept
			case err == nil:
				err = appliedWhole(result)
			}
			errs = errors.Join(errs, err)
			at = append(at, time.Now())
			p.times = append(p.times, time.Since(q.due))
		}
		failed <- errs
		acknowledged <- at
	}()
	begin := time.Now()
	due := begin
	g.bench.apply = func(entry []byte) error {
		pushes <- push{due, g.raft.Propose(bytes.Clone(entry))}
		return nil
	}
	defer func() { g.bench.apply = g.propose }()
	for err == nil && !ended(done, time.Since(begin) > d) {
		time.Sleep(time.Until(due))
		err = g.bench.pushUniform(p.offered)
		p.offered++
		due = due.Add(interval)
	}
	took = time.Since(begin)
	close(pushes)
	err = errors.Join(err, <-failed)
	for _, at := range <-acknowledged {
		if at.Sub(begin) <= took {
			p.kept++
		}
	}
	return p, took, err
}

// ended reports whether done is closed or, if it is nil, late.
func ended(done <-chan struct{}, late bool) bool {
	if done == nil {
		return late
	}
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// pacedBeside measures pushes below what the shard takes: those of a job that computes
// between them. offered is in million rows a second.
func (g *group) pacedBeside(label string, offered float64, rounds int, report func(figures.Figure)) error {
	interval := time.Duration(partKeys / (offered * 1e6) * float64(time.Second))
	var with, without pacing
	var images, seconds []float64
	for range rounds {
		done := make(chan struct{})
		result := make(chan error, 1)
		go func() {
			result <- g.raft.Snapshot()
			close(done)
		}()
		p, took, err := g.paced(interval, done, 0)
		if err = errors.Join(err, <-result); err != nil {
			return err
		}
		with.add(p)
		images, seconds = append(images, g.machine.images), append(seconds, took.Seconds())
		if p, _, err = g.paced(interval, nil, took); err != nil {
			return err
		}
		without.add(p)
	}
	name := func(what string) string { return fmt.Sprintf("acked/%s/%s/dim=%d", label, what, g.bench.dim) }
	report(figures.AtLeast(name("pushes"), with.share()/without.share(), "×", pushesBar))
	report(figures.AtMost(name("images"), median(images), "×", imagesBar))
	report(figures.Free(name("offered"), offered, "Mrows/s"))
	report(figures.Free(name("write"), median(seconds), "s"))
	for _, q := range []struct {
		name string
		at   float64
	}{{"p50", 0.5}, {"p99", 0.99}} {
		report(figures.Free(name(q.name), milliseconds(with.times.quantile(q.at)), "ms"))
		report(figures.Free(name(q.name+"-alone"), milliseconds(without.times.quantile(q.at)), "ms"))
	}
	return nil
}

func (p *pacing) add(q pacing) {
	p.offered, p.kept, p.times = p.offered+q.offered, p.kept+q.kept, append(p.times, q.times...)
}

// share of what was due that was acknowledged in time.
func (p *pacing) share() float64 { return float64(p.kept) / float64(p.offered) }

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }
