package packer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

const testLimit = 5 * time.Millisecond

// lingering returns a packer of a busy server in whose shard several parts of partBytes were at once.
func lingering(t *testing.T, atOnce, partBytes int) *Packer {
	t.Helper()
	k := newIdle(&sizes{}, firstEpoch)
	var parts []*queuedPart
	for i := range atOnce {
		submit(t, k, byte(i), partBytes)
	}
	for len(parts) < atOnce {
		taken, over := k.gather(k.take())
		parts = append(parts, taken...)
		if over != nil {
			parts = append(parts, over)
		}
	}
	for _, p := range parts {
		p.respond(shard.PartResult{})
	}
	k.linger.limit.Store(int64(testLimit))
	return k
}

func submit(t *testing.T, k *Packer, client byte, partBytes int) {
	t.Helper()
	part := wire.Part{Client: rowraft.ClientID{client}, Payload: make([]byte, partBytes)}
	if _, err := k.Submit(context.Background(), part, nil); err != nil {
		t.Error(err)
	}
}

func TestEntryWaitsForThePushesOfOthers(t *testing.T) {
	half := rowraft.TargetEntryBytes / 2
	const ms = time.Millisecond
	for name, test := range map[string]struct {
		atOnce, partBytes int
		after             []time.Duration // when parts come after the first one
		parts             int
		waited            time.Duration
	}{
		"until all are there":    {3, 100, []time.Duration{ms, 2 * ms}, 3, 2 * ms},
		"until its limit":        {3, 100, []time.Duration{ms, 7 * ms}, 2, testLimit},
		"not for a caller alone": {1, 100, []time.Duration{ms}, 1, 0},
		"not for more than fits": {3, half + 1, []time.Duration{ms}, 1, 0},
		"not once it is full":    {4, half - 1000, []time.Duration{ms, 2 * ms}, 2, ms},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := lingering(t, test.atOnce, test.partBytes)
				submit(t, k, 0, test.partBytes)
				for i, after := range test.after {
					time.AfterFunc(after, func() { submit(t, k, byte(i+1), test.partBytes) })
				}
				begun := time.Now()
				parts, over := k.gather(k.take())
				if waited := time.Since(begun); len(parts) != test.parts || over != nil || waited != test.waited {
					t.Errorf("%d parts after %v (over: %v), want %d after %v", len(parts), waited, over != nil, test.parts,
						test.waited)
				}
				time.Sleep(time.Second) // until the last part is there
			})
		})
	}
}

// A packer that closes does not wait, nor one on a server that is not busy, nor one that sums waiting pushes, nor one
// whose only client has several pushes under way.
func TestEntryDoesNotWaitWithoutNeed(t *testing.T) {
	for name, change := range map[string]func(*Packer){
		"closed":   func(k *Packer) { close(k.stop) },
		"not busy": func(k *Packer) { k.linger.limit.Store(-1) },
		"sums":     func(k *Packer) { k.sums.recent.worth = true },
		"one client": func(k *Packer) {
			for i := range k.linger.clients {
				k.linger.clients[i] = map[rowraft.ClientID]struct{}{{}: {}}
			}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			k := lingering(t, 3, 100)
			change(k)
			submit(t, k, 0, 100)
			begun := time.Now()
			if parts, _ := k.gather(k.take()); len(parts) != 1 || time.Since(begun) != 0 {
				t.Errorf("%s: %d parts after %v", name, len(parts), time.Since(begun))
			}
		})
	}
}

// Parts count from Submit to their result, so that a caller whose pushes are always in the log is waited for.
func TestPartsInsideTheShard(t *testing.T) {
	k := newIdle(&sizes{}, firstEpoch)
	for range maxQueuedParts {
		submit(t, k, 0, 1)
	}
	if _, err := k.Submit(t.Context(), wire.Part{}, nil); rowraft.CodeOf(err) != rowraft.CodeOverloaded {
		t.Fatalf("one part too many: %v", err)
	}
	for n := maxQueuedParts; ; n-- {
		if got := k.linger.inside.Load(); got != int32(n) {
			t.Fatalf("%d parts inside, want %d", got, n)
		}
		if n == 0 {
			return
		}
		k.take().respond(shard.PartResult{})
	}
}

func TestHowLongAnEntryWaits(t *testing.T) {
	const ms = time.Millisecond
	for name, test := range map[string]struct {
		took     []time.Duration // what the entries take, in turn
		entries  int
		min, max time.Duration
	}{
		"a server without load":   {[]time.Duration{ms}, 100, -time.Hour, 0},
		"a slow disk":             {[]time.Duration{20 * ms}, 100, -time.Hour, 0},
		"some entries take twice": {[]time.Duration{ms, 2 * ms}, 100, -time.Hour, 0},
		"a busy server":           {[]time.Duration{2 * ms, 9 * ms, 9 * ms, 9 * ms}, 100, 2 * ms, 4 * ms},
		"a server that hangs":     {[]time.Duration{2 * ms, 900 * ms, 900 * ms}, 100, 5 * ms, maxLinger},
	} {
		var l linger
		for i := range test.entries {
			l.observe(test.took[i%len(test.took)])
		}
		if got := time.Duration(l.limit.Load()); got < test.min || got > test.max {
			t.Errorf("%s: an entry waits %v, want %v to %v", name, got, test.min, test.max)
		}
	}
}

// After a hang, entries soon do not wait any more.
func TestAHangIsForgotten(t *testing.T) {
	var l linger
	for i := range 100 + 8 + 20 {
		took := time.Millisecond
		if i >= 100 && i < 108 {
			took = 5 * time.Second
		}
		l.observe(took)
		if got := time.Duration(l.limit.Load()); i == 107 && got != maxLinger {
			t.Errorf("right after the hang, an entry waits %v, want %v", got, maxLinger)
		}
	}
	if got := time.Duration(l.limit.Load()); got > 0 {
		t.Errorf("20 entries after the hang, one waits %v", got)
	}
}

// A disk that became slow for good is not taken for a busy server for ever.
func TestTheLeastTimeIsForgotten(t *testing.T) {
	var l linger
	l.observe(time.Millisecond)
	for i := range 2 * timesEntries {
		if got := time.Duration(l.limit.Load()); i > 100 && i < timesEntries && got != maxLinger {
			t.Fatalf("after %d slow entries, one waits %v, want %v", i, got, maxLinger)
		}
		l.observe(20 * time.Millisecond)
	}
	if got := time.Duration(l.limit.Load()); got > 0 {
		t.Errorf("at the end, an entry waits %v", got)
	}
}

func TestWindow(t *testing.T) {
	var most, least window
	for i, v := range []int64{5, 9, 3, 2, 1, 4, 4} {
		wantMost := []int64{5, 9, 9, 9, 3, 4, 4}[i]
		wantLeast := []int64{5, 5, 3, 2, 1, 1, 1}[i]
		if m, l := most.add(v, 2, larger), least.add(v, 2, smaller); m != wantMost || l != wantLeast {
			t.Errorf("after value %d: largest %d, smallest %d; want %d, %d", i, m, l, wantMost, wantLeast)
		}
	}
}
