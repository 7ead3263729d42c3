package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rowraft/rowraft/e2e/cluster"
)

// Limits of the liveness phase. They allow for other work on the machine; the run prints the measured times.
const (
	firstPushLimit = 20 * time.Second
	allPushesLimit = 30 * time.Second
	catchUpLimit   = 40 * time.Second
	servingLimit   = 50 * time.Second
)

// span is the distribution of a duration in seconds, over the rounds of a run.
type span struct {
	N   int     `json:"n"`
	P50 float64 `json:"p50_seconds"`
	Max float64 `json:"max_seconds"`

	all []time.Duration
}

func (s *span) add(ds ...time.Duration) {
	s.all = append(s.all, ds...)
	slices.Sort(s.all)
	s.N = len(s.all)
	s.P50, s.Max = s.all[s.N/2].Seconds(), s.all[s.N-1].Seconds()
}

func (s span) String() string { return fmt.Sprintf("%.2f s, at most %.2f s", s.P50, s.Max) }

// recovery is the times from the end of the faults until the cluster works again.
type recovery struct {
	FirstPush  span `json:"first_push_of_shard"` // pushes that began after the heal, by shard
	AllClients span `json:"push_of_every_client"`
	CatchUp    span `json:"replicas_caught_up"`
	Serving    span `json:"servers_serve"` // including killed servers
}

// liveness waits, after all faults have ended, until every shard accepts pushes, every client has a push
// acknowledged, every replica has caught up and every server serves.
func (r *chaos) liveness(ctx context.Context, healed time.Time, ended <-chan struct{}) {
	moment := r.rec.Now()
	r.load.Mark(moment)
	await := func(limit time.Duration, what string, try func() error) time.Duration {
		ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s %v after healing", what, limit))
		defer cancel()
		if err := cluster.Poll(ctx, try); err != nil {
			r.wrong("liveness: %v", err)
		}
		return time.Since(healed)
	}
	var first []time.Duration
	await(firstPushLimit, "some shard has no push acknowledged", func() error {
		first = r.load.FirstAcks()
		if shard := slices.Index(first, 0); shard >= 0 {
			return fmt.Errorf("none on shard %d", shard)
		}
		return nil
	})
	first = slices.DeleteFunc(first, func(d time.Duration) bool { return d == 0 })
	r.res.Recovery.FirstPush.add(first...)
	r.res.Recovery.AllClients.add(await(allPushesLimit, "some client has no push acknowledged", func() error {
		if !r.load.Since(moment) {
			return errors.New("not acknowledged")
		}
		return nil
	}))
	caught, cancel := context.WithTimeoutCause(ctx, catchUpLimit,
		fmt.Errorf("a replica has not caught up %v after healing", catchUpLimit))
	defer cancel()
	if err := r.cluster.CaughtUp(caught); err != nil {
		r.wrong("liveness: %v", err)
	}
	r.res.Recovery.CatchUp.add(time.Since(healed))
	r.res.Recovery.Serving.add(await(servingLimit, "a fault has not ended", func() error {
		select {
		case <-ended:
			return nil
		default:
			return errors.New("a server does not serve yet")
		}
	}))
}
