package admit

import (
	"errors"
	"math/rand/v2"
	"testing"
	"testing/fstest"
	"time"

	"github.com/rowraft/rowraft"
)

// A client that stays below its share of half the pool is never refused, for any requests of the others in
// any order.
func TestAPoolIsShared(t *testing.T) {
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 1))
		const limit, clients = 1000, 8
		p := newPool(limit)
		held := make([][]int64, clients) // client 0 never has more than its share
		sum := func(c int) (n int64) {
			for _, b := range held[c] {
				n += b
			}
			return n
		}
		for range 2000 {
			c := rng.IntN(clients)
			if n := len(held[c]); n > 0 && rng.IntN(3) == 0 {
				i := rng.IntN(n)
				p.add(c, -held[c][i])
				held[c] = append(held[c][:i], held[c][i+1:]...)
				continue
			}
			n := 1 + rng.Int64N(60)
			if c == 0 {
				if n = 1 + rng.Int64N(10); sum(0)+n > limit/(2*clients) {
					continue
				}
			}
			ok, _ := p.fits(c, n)
			if !ok && c == 0 {
				t.Fatalf("seed %d: a client with %d bytes may not have %d more of %d, %d of which %d clients have", seed, sum(0), n,
					limit, p.used, len(p.by))
			}
			if ok {
				p.add(c, n)
				held[c] = append(held[c], n)
			}
			if p.used > limit {
				t.Fatalf("seed %d: %d bytes in flight, at most %d", seed, p.used, limit)
			}
		}
	}
}

func TestOneClientLeavesRoomForOthers(t *testing.T) {
	p := newPool(100)
	for p.used < 100 {
		ok, _ := p.fits("greedy", 10)
		if !ok {
			break
		}
		p.add("greedy", 10)
	}
	if p.used != 50 {
		t.Errorf("one client alone has %d bytes of 100, want half", p.used)
	}
	for i := range 5 {
		if ok, _ := p.fits(i, 10); !ok {
			t.Errorf("client %d, which has nothing, is refused with %d of 100 in flight", i, p.used)
		}
		p.add(i, 10)
	}
	if ok, why := p.fits("one more", 10); ok || why != refusedNode {
		t.Errorf("with all in flight one more is let in: %v, %v", ok, why)
	}
}

// A request larger than every limit would otherwise be refused forever.
func TestWhatIsLargeGetsInAlone(t *testing.T) {
	a := New(Limits{InFlight: 100, Shard: 50, Client: 25})
	big, err := a.Admit(t.Context(), 3, Push, 1000)
	if err != nil {
		t.Fatalf("alone: %v", err)
	}
	_, err = a.Admit(t.Context(), 3, Push, 1)
	o, ok := errors.AsType[*rowraft.OverloadedError](err)
	if !ok || o.RetryAfter < hintBase || o.RetryAfter > hintMost {
		t.Fatalf("while it is in flight: %v, want an OverloadedError with a hint", err)
	}
	big.Release()
	big.Release() // counts once
	if s := a.stats(); s.used[Push] != 0 || s.shards[3] != 0 || s.clients != 0 || s.refused[refusedClient] != 1 {
		t.Errorf("after it: %+v", s)
	}
}

// Ten clients that wait for one admission ask at a tenth of the rate each.
func TestTheHintGrowsWithRefusals(t *testing.T) {
	h, now := hint{}, time.Now()
	first := h.refused(now)
	var busy time.Duration
	for range 100 {
		now = now.Add(time.Millisecond)
		h.admitted()
		for range 10 {
			busy = h.refused(now)
		}
	}
	if first != 2*hintBase || busy < 8*hintBase || busy > 12*hintBase {
		t.Errorf("the first hint is %v, with ten refusals for one admission %v", first, busy)
	}
	for range 10000 {
		busy = h.refused(now)
	}
	if busy != hintMost {
		t.Errorf("when no client is admitted the hint is %v, want %v", busy, hintMost)
	}
	if now = now.Add(time.Minute); h.refused(now) > hintMost {
		t.Error("it never gets shorter")
	}
}

func TestLimitsComeFromMemory(t *testing.T) {
	disk := fstest.MapFS{"proc/meminfo": {Data: []byte("MemTotal: 8388608 kB\n")}}
	for _, tc := range []struct {
		name        string
		given, want Limits
	}{
		{"of the machine", Limits{}, Limits{512 << 20, 256 << 20, 128 << 20, 8 << 30}},
		{"of a small one", Limits{Memory: 256 << 20}, Limits{64 << 20, 32 << 20, 16 << 20, 256 << 20}},
		{"of a large one", Limits{Memory: 1 << 40}, Limits{1 << 30, 512 << 20, 256 << 20, 1 << 40}},
		{"given", Limits{InFlight: 100, Client: 7}, Limits{100, 50, 7, 8 << 30}},
	} {
		got := tc.given
		if err := got.SetDefaults(disk); err != nil || got != tc.want {
			t.Errorf("%s: %+v, %v, want %+v", tc.name, got, err, tc.want)
		}
	}
	if err := (&Limits{Shard: -1}).SetDefaults(disk); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("a negative limit: %v", err)
	}
}
