package freshness

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft"
)

// probed is a replica whose log, and whose leader's log, a test moves.
type probed struct {
	*Tracker
	end     context.CancelFunc
	at      atomic.Uint64 // applied index
	commit  atomic.Uint64 // index that the leader answers
	takes   time.Duration // how long the leader takes for an answer
	answers atomic.Int64
	gone    atomic.Bool  // the leader is away
	asleep  atomic.Int64 // ns that pass on the kernel's clock only
}

func newProbed(t *testing.T, takes time.Duration) *probed {
	p := &probed{takes: takes}
	ctx, end := context.WithCancel(t.Context())
	p.end = end
	p.Tracker = New(ctx, func(ctx context.Context) (rowraft.Index, error) {
		index := rowraft.Index(p.commit.Load())
		select {
		case <-time.After(p.takes):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		p.answers.Add(1)
		if p.gone.Load() {
			return 0, rowraft.Errorf(rowraft.CodeNoLeader, "no leader")
		}
		return index, nil
	}, func() rowraft.Index { return rowraft.Index(p.at.Load()) }, func(ctx context.Context, i rowraft.Index) error {
		for p.at.Load() < uint64(i) {
			select {
			case <-time.After(time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	p.boot = func() int64 { return p.asleep.Load() } // real time may stop or jump relative to virtual time
	return p
}

// set moves the leader's log and the replica's.
func (p *probed) set(commit, at uint64) {
	p.commit.Store(commit)
	p.at.Store(at)
}

func (p *probed) stop() { p.end(); p.Close() }

// read waits for a proof for up to 300 ms, as a pull does.
func (p *probed) read(t *testing.T, b Bound) (Lease, bool) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	return p.Await(ctx, b)
}

// The age counts from the request to the leader, however late the answer arrives and however late its index
// is applied.
func TestAgeIsCountedFromTheQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProbed(t, 100*time.Millisecond)
		defer p.stop()
		p.set(10, 0)
		time.AfterFunc(150*time.Millisecond, func() { p.at.Store(10) }) // the next probe is answered after 200 ms
		got, ok := p.read(t, Bound{MaxAge: time.Second})
		if !ok || got.Age() < 150*time.Millisecond {
			t.Fatalf("an index that was asked for 150 ms ago and applied now: age %v, %v", got.Age(), ok)
		}
		if _, ok := p.read(t, Bound{MaxAge: 50 * time.Millisecond}); ok {
			t.Error("50 ms were proved by a leader who takes 100 ms to answer")
		}
	})
}

// A follower that gets no entries still gets heartbeats of a leader. Those prove nothing.
func TestAReplicaThatAppliesNothingGrowsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProbed(t, 0)
		defer p.stop()
		p.set(10, 10)
		if got, ok := p.read(t, Bound{MaxAge: time.Second}); !ok || got.Lag != 0 {
			t.Fatalf("a replica that has everything: lag %d, %v", got.Lag, ok)
		}
		for i := range 20 {
			p.commit.Add(5)
			time.Sleep(200 * time.Millisecond) //tidy:allow sleep virtual time
			got, ok := p.read(t, Bound{MaxAge: time.Second})
			if late := i >= 5; ok == late && i != 4 {
				t.Errorf("%d × 200 ms after its last entry a replica proves %v for 1 s (age %v)", i+1, ok, got.Age())
			}
		}
		if got, _ := p.read(t, Bound{MaxAge: time.Second}); got.Lag != 100 || got.Age() < 4*time.Second {
			t.Errorf("100 entries and more than 4 s behind, it says %d and %v", got.Lag, got.Age())
		}
		p.at.Store(p.commit.Load())
		if got, ok := p.read(t, Bound{MaxAge: time.Second}); !ok || got.Lag != 0 {
			t.Errorf("when it has caught up it says %d entries, %v, %v", got.Lag, got.Age(), ok)
		}
	})
}

// Go's clock stops while the machine sleeps, but the replica's state grows older.
func TestAReplicaGrowsOldInItsSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProbed(t, 0)
		defer p.stop()
		b := Bound{MaxAge: time.Minute}
		p.read(t, b)
		p.gone.Store(true)
		p.asleep.Add(int64(59 * time.Second))
		if got, ok := p.read(t, b); !ok || got.Age() < 59*time.Second {
			t.Errorf("after 59 s of sleep: age %v, %v", got.Age(), ok)
		}
		p.asleep.Add(int64(2 * time.Second))
		if got, ok := p.read(t, b); ok || got.Age() < 61*time.Second {
			t.Errorf("after 61 s of sleep: age %v, %v", got.Age(), ok)
		}
	})
}

// Without a leader, a replica serves for as long as its proof lasts, then stops. It serves again when there
// is a leader.
func TestProofsOutlastALeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProbed(t, 0)
		defer p.stop()
		b := Bound{MaxAge: 2 * time.Second}
		p.read(t, b)
		p.gone.Store(true)
		served := time.Duration(0)
		//tidy:allow sleep virtual time
		for begin := time.Now(); time.Since(begin) < 5*time.Second; time.Sleep(10 * time.Millisecond) {
			if _, ok := p.read(t, b); ok {
				served = time.Since(begin)
			}
		}
		if served < 1500*time.Millisecond || served > 2*time.Second {
			t.Errorf("with a bound of 2 s it served for %v after the leader had gone", served)
		}
		p.gone.Store(false)
		if got, ok := p.read(t, b); !ok {
			t.Errorf("with a leader again: age %v", got.Age())
		}
	})
}

// A lag above the bound leads to a wait and a refusal, like an age.
func TestLagIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProbed(t, 0)
		defer p.stop()
		p.set(10, 10)
		p.read(t, Bound{MaxAge: time.Minute})
		p.set(30, 10)
		time.Sleep(maxProbePause) //tidy:allow sleep virtual time
		synctest.Wait()
		if got, ok := p.read(t, Bound{MaxAge: time.Minute, MaxLag: 20}); !ok || got.Lag != 20 {
			t.Errorf("20 entries behind, for a lag of 20: %d, %v", got.Lag, ok)
		}
		if got, ok := p.read(t, Bound{MaxAge: time.Minute, MaxLag: 19}); ok || got.Lag != 20 {
			t.Errorf("20 entries behind, for a lag of 19: %d, %v", got.Lag, ok)
		}
		time.AfterFunc(100*time.Millisecond, func() { p.at.Store(12) })
		if got, ok := p.read(t, Bound{MaxAge: time.Minute, MaxLag: 19}); !ok || got.Lag != 18 {
			t.Errorf("18 entries behind after 100 ms: %d, %v", got.Lag, ok)
		}
	})
}

// A replica sends no probe while no read arrives, and no more probes than a read needs.
func TestProbesAreFewAndEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProbed(t, 0)
		defer p.stop()
		//tidy:allow sleep virtual time
		for begin := time.Now(); time.Since(begin) < 10*time.Second; time.Sleep(time.Millisecond) {
			if _, ok := p.read(t, Bound{MaxAge: 4 * time.Second}); !ok {
				t.Fatal("no proof")
			}
		}
		if n := p.answers.Load(); n > 12 {
			t.Errorf("%d probes for 10 s of reads with a bound of 4 s, want one a second", n)
		}
		time.Sleep(2 * keepFor) //tidy:allow sleep virtual time
		before := p.answers.Load()
		time.Sleep(time.Hour) //tidy:allow sleep virtual time
		if n := p.answers.Load(); n != before {
			t.Errorf("%d probes in an hour without a reader", n-before)
		}
		if _, ok := p.read(t, Bound{MaxAge: time.Second}); !ok {
			t.Error("no proof for the first read after an hour")
		}
	})
}

// Meets tells whether a read would have a proof at once, and sends no probe itself.
func TestMeetsAsksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProbed(t, 0)
		defer p.stop()
		tight, loose := Bound{MaxAge: time.Millisecond}, Bound{MaxAge: time.Minute}
		if p.Meets(loose) {
			t.Error("there is a proof before the first probe")
		}
		time.Sleep(time.Minute) //tidy:allow sleep virtual time
		if n := p.answers.Load(); n != 0 {
			t.Errorf("%d probes without a read", n)
		}
		if _, ok := p.read(t, Bound{MaxAge: time.Hour}); !ok || !p.Meets(loose) {
			t.Error("no proof after a read")
		}
		p.set(9, 0)             // entries that the replica lacks
		time.Sleep(time.Second) //tidy:allow sleep virtual time
		if before := p.answers.Load(); p.Meets(tight) || !p.Meets(loose) || p.answers.Load() != before {
			t.Error("a proof of a second ago meets 1 ms, or does not meet a minute, or there was a probe")
		}
	})
}
