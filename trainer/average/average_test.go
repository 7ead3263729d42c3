package average

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rowraft/rowraft"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// registry counts the generations that tests begin.
type registry struct {
	*Feed
	generation uint64
}

func newRegistry() *registry { return &registry{Feed: NewFeed()} }

// begin makes the next generation of these trainers.
func (r *registry) begin(trainers ...*trainer) {
	m := Members{}
	for _, x := range trainers {
		m.Ranks = append(m.Ranks, x.rank)
		m.Addresses = append(m.Addresses, x.address)
	}
	r.generation++
	m.Generation = r.generation
	r.Begin(m)
}

// trainer is a member whose numbers are the sum of the means so far.
type trainer struct {
	*Group
	rank    int
	address string
	total   []float32
}

func (x *trainer) Save() []float32 { return slices.Clone(x.total) }

func (x *trainer) Load(values []float32) error {
	if len(values) != len(x.total) {
		return fmt.Errorf("%d numbers, want %d", len(values), len(x.total))
	}
	copy(x.total, values)
	return nil
}

func open(t testing.TB, r Registry, rank, size int, change func(*Options)) *trainer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	x := &trainer{rank: rank, address: l.Addr().String(), total: make([]float32, size)}
	opts := Options{Job: [16]byte{1, 2, 3}, Rank: rank, Listener: l, Registry: r, Keeper: x, Limit: 1 << 20}
	if change != nil {
		change(&opts)
	}
	if x.Group, err = Open(opts); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.kill)
	return x
}

// kill ends a trainer without a farewell; it may be called twice.
func (x *trainer) kill() {
	x.cancel()
	x.opts.Listener.Close()
	if x.link != nil {
		x.link.close()
	}
	x.wg.Wait()
}

// hear waits until these know of the generation that r began last. One that does not may
// do rounds of the one before, without those who have joined, and be done before them.
func (r *registry) hear(ctx context.Context, t testing.TB, trainers ...*trainer) {
	t.Helper()
	for _, x := range trainers {
		for {
			m, changed, err := x.newest(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if m.Generation == r.generation {
				break
			}
			select {
			case <-changed:
			case <-ctx.Done():
				t.Fatalf("rank %d does not hear of generation %d", x.rank, r.generation)
			}
		}
	}
}

// gradient is what a trainer has in a round.
func gradient(rank int, round uint64, size int) []float32 {
	r := rand.New(rand.NewPCG(uint64(rank), round))
	g := make([]float32, size)
	for i := range g {
		g[i] = float32(r.NormFloat64())
	}
	return g
}

func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// train does rounds until `until`, and adds each mean to the total.
func (x *trainer) train(ctx context.Context, until uint64) error {
	for round := x.round; round < until; {
		g := gradient(x.rank, round, len(x.total))
		r, err := x.Average(ctx, g)
		if err != nil {
			return fmt.Errorf("rank %d, round %d: %w", x.rank, round, err)
		}
		if !r.Behind {
			for i, v := range g {
				x.total[i] += v
			}
		}
		round = r.Round
	}
	return nil
}

func all(t testing.TB, f func(*trainer) error, trainers ...*trainer) {
	t.Helper()
	var wg sync.WaitGroup
	for _, x := range trainers {
		wg.Go(func() {
			if err := f(x); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func same(t testing.TB, trainers ...*trainer) {
	t.Helper()
	for _, x := range trainers[1:] {
		if !slices.Equal(bitsOf(x.total), bitsOf(trainers[0].total)) {
			t.Errorf("ranks %d and %d have other bits", trainers[0].rank, x.rank)
		}
	}
}

// expect is the total of means in rank order over generations of ranks.
func expect(total []float32, from, to uint64, ranks ...int) {
	for round := from; round < to; round++ {
		sum := gradient(ranks[0], round, len(total))
		for _, r := range ranks[1:] {
			for i, v := range gradient(r, round, len(total)) {
				sum[i] += v
			}
		}
		for i := range total {
			total[i] += sum[i] / float32(len(ranks))
		}
	}
}

const size = 66_000 // more than a buffer

func TestMeansHaveTheSameBitsEverywhere(t *testing.T) {
	for _, n := range []int{1, 2, 5} {
		ctx, r := deadline(t), newRegistry()
		var trainers []*trainer
		for rank := range n {
			trainers = append(trainers, open(t, r, rank, size, nil))
		}
		r.begin(trainers...)
		all(t, func(x *trainer) error { return x.train(ctx, 4) }, trainers...)
		want := make([]float32, size)
		ranks := make([]int, n)
		for i := range ranks {
			ranks[i] = i
		}
		expect(want, 0, 4, ranks...)
		same(t, trainers...)
		if !slices.Equal(bitsOf(want), bitsOf(trainers[0].total)) {
			t.Errorf("%d ranks: the means are not the sums in rank order", n)
		}
		all(t, func(x *trainer) error { return x.Close(ctx) }, trainers...)
	}
}

// A death aborts the round; the survivors repeat it in the next generation. Then one
// joins and has what they have; its parts count from the next round on.
func TestDeathsAndJoining(t *testing.T) {
	for _, dies := range []int{0, 2} { // the hub, and another one
		t.Run(fmt.Sprintf("rank %d dies", dies), func(t *testing.T) {
			ctx, r := deadline(t), newRegistry()
			a, b, c := open(t, r, 0, size, nil), open(t, r, 1, size, nil), open(t, r, 2, size, nil)
			r.begin(a, b, c)
			all(t, func(x *trainer) error { return x.train(ctx, 3) }, a, b, c)
			dead := []*trainer{a, b, c}[dies]
			live := slices.DeleteFunc([]*trainer{a, b, c}, func(x *trainer) bool { return x == dead })
			var wg sync.WaitGroup
			for _, x := range live {
				wg.Go(func() {
					if err := x.train(ctx, 5); err != nil {
						t.Error(err)
					}
				})
			}
			dead.kill() // while they wait for its part of round 3
			r.begin(live...)
			wg.Wait()
			want := make([]float32, size)
			expect(want, 0, 3, 0, 1, 2)
			expect(want, 3, 5, live[0].rank, live[1].rank)
			same(t, live...)
			if !slices.Equal(bitsOf(want), bitsOf(live[0].total)) {
				t.Error("the survivors did not repeat the round")
			}
			d := open(t, r, 3, size, nil)
			r.begin(live[0], live[1], d)
			r.hear(ctx, t, live...)
			all(t, func(x *trainer) error { return x.train(ctx, 8) }, live[0], live[1], d)
			expect(want, 5, 8, live[0].rank, live[1].rank, 3)
			same(t, live[0], live[1], d)
			if !slices.Equal(bitsOf(want), bitsOf(d.total)) {
				t.Error("the one that joined does not have what the others have, or its parts do not count")
			}
			all(t, func(x *trainer) error { return x.Close(ctx) }, live[0], live[1], d)
		})
	}
}

// Who missed the result of a round that another one has takes it over, and the
// round is not done twice.
func TestAMissedResultIsTakenOver(t *testing.T) {
	ctx, r := deadline(t), newRegistry()
	a, b := open(t, r, 0, size, nil), open(t, r, 1, size, nil)
	r.begin(a, b)
	all(t, func(x *trainer) error { return x.train(ctx, 2) }, a, b)
	// As if b's connection had been cut before the result of round 1 came.
	b.round--
	b.total = make([]float32, size)
	expect(b.total, 0, 1, 0, 1)
	b.link.close()
	b.link = nil
	all(t, func(x *trainer) error { return x.train(ctx, 4) }, a, b)
	want := make([]float32, size)
	expect(want, 0, 4, 0, 1)
	same(t, a, b)
	if !slices.Equal(bitsOf(want), bitsOf(a.total)) {
		t.Error("a round was done twice, or left out")
	}
	all(t, func(x *trainer) error { return x.Close(ctx) }, a, b)
}

// The connection of one member breaks: no member leaves, no number is lost.
func TestABrokenConnectionComesBack(t *testing.T) {
	ctx, r := deadline(t), newRegistry()
	a, b, c := open(t, r, 0, size, nil), open(t, r, 1, size, nil), open(t, r, 2, size, nil)
	r.begin(a, b, c)
	all(t, func(x *trainer) error {
		for round := uint64(1); round <= 6; round++ {
			if err := x.train(ctx, round); err != nil {
				return err
			}
			if x.rank == int(round)%3 {
				x.link.conn.Close()
			}
		}
		return nil
	}, a, b, c)
	want := make([]float32, size)
	expect(want, 0, 6, 0, 1, 2)
	same(t, a, b, c)
	if !slices.Equal(bitsOf(want), bitsOf(a.total)) {
		t.Error("rounds were lost or done twice")
	}
	all(t, func(x *trainer) error { return x.Close(ctx) }, a, b, c)
}

// Trainers end after different numbers of rounds, the hub first.
func TestFarewell(t *testing.T) {
	ctx, r := deadline(t), newRegistry()
	var trainers []*trainer
	for rank := range 3 {
		trainers = append(trainers, open(t, r, rank, size, nil))
	}
	r.begin(trainers...)
	all(t, func(x *trainer) error {
		if err := x.train(ctx, uint64(2*(x.rank+1))); err != nil {
			return err
		}
		return x.Close(ctx)
	}, trainers...)
	want := make([]float32, size)
	expect(want, 0, 2, 0, 1, 2)
	expect(want, 2, 4, 1, 2)
	expect(want, 4, 6, 2)
	if !slices.Equal(bitsOf(want), bitsOf(trainers[2].total)) {
		t.Error("the last one has not the means of those that were there")
	}
}

func TestDisagreement(t *testing.T) {
	ctx := deadline(t)
	for _, tc := range []struct {
		name   string
		change func(*Options)
		size   int
	}{
		{"another job", func(o *Options) { o.Job = [16]byte{9} }, 10},
		{"other sizes", nil, 11},
		{"more than the limit", func(o *Options) { o.Limit = 9 }, 10},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRegistry()
			a, b := open(t, r, 0, 10, nil), open(t, r, 1, tc.size, tc.change)
			r.begin(a, b)
			var wg sync.WaitGroup
			stop, cancel := context.WithCancel(ctx)
			wg.Go(func() { _ = a.train(stop, 1) })
			if err := b.train(ctx, 1); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
				t.Errorf("Average = %v, want InvalidArgument", err)
			}
			cancel()
			wg.Wait()
		})
	}
}

func TestNoMember(t *testing.T) {
	r := newRegistry()
	a, b := open(t, r, 0, 10, nil), open(t, r, 1, 10, nil)
	r.begin(a)
	if err := b.train(deadline(t), 1); rowraft.CodeOf(err) != rowraft.CodePrecondition {
		t.Errorf("Average = %v, want Precondition", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r.begin(a, b)
	r.hear(ctx, t, a)
	time.AfterFunc(time.Millisecond, cancel)
	if err := a.train(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("Average = %v, want that of the context", err)
	}
}

// late is a Registry that returns no newer generation to a caller that has one, until the caller
// asks for the newest.
type late struct {
	*registry
	asked atomic.Int32
	told  chan struct{}
}

func (l *late) Next(ctx context.Context, than uint64) (Members, error) {
	if than == 0 && l.asked.Add(1) == 2 {
		close(l.told)
	} else if than > 0 {
		select {
		case <-l.told:
		case <-ctx.Done():
			return Members{}, ctx.Err()
		}
	}
	return l.registry.Next(ctx, than)
}

// Who joins need not wait until its Group has heard so.
func TestOneThatJoinsIsAMemberAtOnce(t *testing.T) {
	ctx, r := deadline(t), newRegistry()
	a, b := open(t, r, 0, 10, nil), open(t, &late{registry: r, told: make(chan struct{})}, 1, 10, nil)
	r.begin(a)
	if _, _, err := b.newest(ctx); err != nil {
		t.Fatal(err)
	}
	r.begin(a, b)
	r.hear(ctx, t, a)
	all(t, func(x *trainer) error { return x.train(ctx, 1) }, a, b)
	same(t, a, b)
	all(t, func(x *trainer) error { return x.Close(ctx) }, a, b)
}

// One round of the dense gradients of a DLRM.
func BenchmarkRound(b *testing.B) {
	const bytes = 1_840_000
	for _, n := range []int{2, 4, 8} {
		b.Run(fmt.Sprintf("ranks=%d/1.84MB", n), func(b *testing.B) {
			r := newRegistry()
			var trainers []*trainer
			for rank := range n {
				trainers = append(trainers, open(b, r, rank, bytes/4, nil))
			}
			r.begin(trainers...)
			values := make([][]float32, n)
			for i := range values {
				values[i] = gradient(i, 0, bytes/4)
			}
			round := func() {
				all(b, func(x *trainer) error { _, err := x.Average(b.Context(), values[x.rank]); return err }, trainers...)
			}
			round()
			b.SetBytes(bytes)
			for b.Loop() {
				round()
			}
			b.StopTimer()
			if bits := bitsOf(values[n-1]); !slices.Equal(bits, bitsOf(values[0])) || math.IsNaN(float64(values[0][0])) {
				b.Error("ranks have other bits")
			}
		})
	}
}
