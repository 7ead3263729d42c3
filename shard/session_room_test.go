package shard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/wire"
)

// crowd returns client n of owner.
func crowd(owner uint64, n uint32) (c rowraft.ClientID) {
	binary.BigEndian.PutUint64(c[:], owner)
	binary.BigEndian.PutUint32(c[8:], n)
	return c
}

// openNow opens a session of c with a ticket of the present index.
func (p *pusher) openNow(c rowraft.ClientID, inc rowraft.Incarnation) error {
	o := wire.Opening{Client: c, Incarnation: inc, Ticket: p.AppliedIndex()}
	before := p.Sessions.CheckOpen(&o, p.now)
	err := p.apply(wire.OpenSessionEntry(p.header(), o)).Parts[0].Err
	if rowraft.CodeOf(before) != rowraft.CodeOf(err) {
		p.tb.Fatalf("CheckOpen returns %v, Apply %v", before, err)
	}
	return err
}

func (p *pusher) mustOpenNow(c rowraft.ClientID, inc rowraft.Incarnation) {
	p.tb.Helper()
	if err := p.openNow(c, inc); err != nil {
		p.tb.Fatal(err)
	}
}

func (p *pusher) close(c rowraft.ClientID, inc rowraft.Incarnation) {
	p.tb.Helper()
	if err := p.apply(wire.CloseSessionEntry(p.header(), c, inc)).Parts[0].Err; err != nil {
		p.tb.Fatal(err)
	}
}

// of returns part number seq of c.
func (p *pusher) of(c rowraft.ClientID, inc rowraft.Incarnation, seq rowraft.Seq) wire.Part {
	part := push(0, seq, payloadOf(rows{schema: p.table, keys: []rowraft.Key{42}}))
	part.Client, part.Incarnation = c, inc
	return part
}

func (p *pusher) has(c rowraft.ClientID) bool {
	_, s := p.Sessions.table.list.find(c)
	return s != nil
}

func (p *pusher) all() int { return p.Sessions.Use(p.now).All }

// fill opens sessions, each of a different owner, until the shard is full.
func (p *pusher) fill() {
	p.tb.Helper()
	for n := uint64(1 << 40); p.all() < MaxSessions; n++ {
		p.mustOpenNow(crowd(n, 0), 1)
	}
}

// endMany opens and closes as many sessions as the shard remembers after their end.
func (p *pusher) endMany(inc rowraft.Incarnation) {
	p.tb.Helper()
	for range MaxEnded {
		p.mustOpenNow(crowd(77, 0), inc)
		p.close(crowd(77, 0), inc)
		inc++
	}
}

// TestTheIdlestSessionIsEvicted: of several sessions that can be evicted, an expired one goes first, then
// one that was never used, then one without a gap, then one with a gap, however recently each was used.
func TestTheIdlestSessionIsEvicted(t *testing.T) {
	now := uint64(100 * SessionTTL)
	ago := func(n uint32, idle time.Duration, window uint64) *session {
		s := &session{Client: crowd(1, n), Incarnation: 1, LastUsed: now - uint64(idle)}
		s.Window[0] = window
		return s
	}
	const gap, noGap = 1 << 2, 1 << 1
	list := []*session{ // in the order of eviction
		ago(8, SessionTTL+time.Second, gap), ago(7, UnusedAfter+time.Second, 0), ago(2, IdleAfter+2*time.Second, noGap),
		ago(4, IdleAfter+time.Second, noGap),
		ago(6, IdleAfter+time.Second, noGap), ago(3, SilentAfter+2*time.Second, gap), ago(5, SilentAfter+time.Second, gap),
	}
	used := []*session{ago(0, UnusedAfter, 0), ago(1, IdleAfter, noGap), ago(9, SilentAfter, gap)}
	for len(list) > 0 {
		all := sessions(slices.Concat(list, used))
		slices.SortFunc(all, func(a, b *session) int { return bytes.Compare(a.Client[:], b.Client[:]) })
		if i := all.idlest(now); i < 0 || all[i] != list[0] {
			t.Errorf("%d of %d is evicted, want client %x", i, len(all), list[0].Client)
		}
		list = list[1:]
	}
	if i := sessions(used).idlest(now); i >= 0 {
		t.Errorf("client %x is in use and is evicted", used[i].Client)
	}
}

// TestASessionThatIsOverNeverOpensAgain: a delayed copy of the request that opened a session, followed by a
// copy of a push, changes nothing. This also holds after as many sessions have ended as a shard remembers,
// and in a replica that was restored from a snapshot.
func TestASessionThatIsOverNeverOpensAgain(t *testing.T) {
	for _, how := range []string{"closed", "made room", "expired and made room"} {
		t.Run(how, func(t *testing.T) {
			p := newPusher(t)
			c := crowd(1, 1)
			opening := wire.OpenSessionEntry(p.header(), wire.Opening{Client: c, Incarnation: 5, Ticket: p.AppliedIndex()})
			part := p.of(c, 5, 1)
			p.apply(opening)
			if got := p.parts(part)[0]; got.Err != nil || got.Duplicate {
				t.Fatal(got)
			}
			switch how {
			case "closed":
				p.close(c, 4) // a close of an earlier incarnation: no effect
				p.close(c, 6)
				if !p.has(c) {
					t.Fatal("the session was closed under another incarnation")
				}
				p.close(c, 5)
			case "made room":
				p.now += uint64(IdleAfter) + 1
				p.fill()
				p.mustOpenNow(crowd(1<<50, 0), 1)
				p.now += uint64(UnusedAfter) + 1
			default:
				p.now += uint64(SessionTTL) + 1
				p.fill()
				p.mustOpenNow(crowd(1<<50, 0), 1)
				p.now += uint64(UnusedAfter) + 1
			}
			if p.has(c) {
				t.Fatal("the session still exists")
			}
			late := func(p *pusher, want rowraft.Code) {
				t.Helper()
				testutil.WantCode(t, p.apply(opening).Parts[0].Err, want)
				testutil.WantCode(t, p.parts(part)[0].Err, rowraft.CodeSessionExpired)
				if p.count() != 1 {
					t.Fatalf("%v pushes applied", p.count())
				}
			}
			restored := func() *pusher {
				t.Helper()
				other := &pusher{replica: newReplica(t, Config{}), table: p.table}
				if err := other.Restore(bytes.NewReader(p.snapshot())); err != nil {
					t.Fatal(err)
				}
				other.now, other.index = p.now, p.index
				return other
			}
			late(restored(), rowraft.CodeSessionExpired)
			late(p, rowraft.CodeSessionExpired)
			testutil.WantCode(t, p.openNow(c, 4), rowraft.CodeSessionExpired)
			if _, ended := errors.AsType[*rowraft.SessionEndedError](p.openNow(c, 4)); ended {
				t.Error("an earlier incarnation is told that its session is over, not that a later one fenced it")
			}
			if _, ended := errors.AsType[*rowraft.SessionEndedError](p.openNow(c, 5)); !ended {
				t.Error("the same incarnation is not told that its session is over")
			}
			p.endMany(10)
			late(p, rowraft.CodeOverloaded) // refused because of its ticket
			late(restored(), rowraft.CodeOverloaded)
			p.mustOpenNow(c, 6)
			if got := p.parts(p.of(c, 6, 1))[0]; got.Err != nil || got.Duplicate {
				t.Errorf("the next incarnation: %+v", got)
			}
		})
	}
}

// TestDelayedCopiesApplyNothing: clients open sessions, push, close, lose their sessions and open others.
// The network keeps a copy of every request and delivers it again at any later time. Each push counts once.
func TestDelayedCopiesApplyNothing(t *testing.T) {
	for seed := range uint64(6) {
		p := newPusher(t)
		rng := rand.New(rand.NewPCG(seed, 9))
		var copies []func()
		var want float32
		inc := rowraft.Incarnation(0) // counted for the whole cluster
		type writer struct {
			id   rowraft.ClientID
			inc  rowraft.Incarnation
			next rowraft.Seq
		}
		writers := make([]*writer, 5)
		for i := range writers {
			writers[i] = &writer{id: crowd(uint64(i%2), uint32(i))}
		}
		request := func(entry func() []byte) *Applied {
			copies = append(copies, func() { p.apply(entry()) })
			return p.apply(entry())
		}
		for phase := range 3 {
			for range 300 {
				p.now += uint64(time.Duration(rng.IntN(20)) * time.Second)
				w := writers[rng.IntN(len(writers))]
				switch k := rng.IntN(20); {
				case w.inc == 0: // no session: take another incarnation and a ticket
					inc++
					o := wire.Opening{Client: w.id, Incarnation: inc, Ticket: p.AppliedIndex()}
					if rng.IntN(3) == 0 { // the request is delayed
						_ = p.openNow(crowd(99, 0), 1<<40+inc)
					}
					if request(func() []byte { return wire.OpenSessionEntry(p.header(), o) }).Parts[0].Err == nil {
						w.inc, w.next = inc, 1
					}
				case k == 0:
					id, old := w.id, w.inc
					request(func() []byte { return wire.CloseSessionEntry(p.header(), id, old) })
					w.inc = 0
				case k == 1 && len(copies) > 0:
					for range 10 {
						copies[rng.IntN(len(copies))]()
					}
				default:
					part := p.of(w.id, w.inc, w.next)
					got := request(func() []byte { return entryOf(p.header(), part) }).Parts[0]
					switch {
					case got.Err == nil && !got.Duplicate:
						want++
						w.next++
					case rowraft.CodeOf(got.Err) == rowraft.CodeSessionExpired:
						w.inc = 0
					default:
						t.Fatalf("the result of a first push is %+v", got)
					}
				}
			}
			if phase == 0 { // all sessions end
				p.now += uint64(SilentAfter) + 1
				p.fill()
				for n := range uint32(2 * len(writers)) {
					_ = p.openNow(crowd(98, n), 1)
				}
				p.now += uint64(UnusedAfter) + 1
			}
			if phase == 1 {
				p.now += uint64(SilentAfter) + 1
				p.endMany(1 << 50)
			}
			for _, c := range copies {
				c()
			}
			if p.count() != want {
				t.Fatalf("seed %d, phase %d: %v pushes applied, %v were acknowledged", seed, phase, p.count(), want)
			}
		}
	}
}

// TestAWeekOfRetraining: 200 new workers train each hour. Every worker can open a session, whether earlier
// workers closed theirs or crashed, with outstanding pushes or without.
func TestAWeekOfRetraining(t *testing.T) {
	const workers, gaps = 200, "crashed with batches that never arrived"
	for name, end := range map[string]func(p *pusher, c rowraft.ClientID, n int){
		"closed":  func(p *pusher, c rowraft.ClientID, _ int) { p.close(c, 1) },
		"crashed": func(*pusher, rowraft.ClientID, int) {},
		gaps: func(p *pusher, c rowraft.ClientID, _ int) {
			p.parts(p.of(c, 1, 9))
		},
	} {
		for _, owner := range []string{"one owner", "owners of their own"} {
			hours := 7 * 24
			if name == gaps {
				hours = 36 // slow: each new session examines all windows
			}
			t.Run(name+", "+owner, func(t *testing.T) {
				p := newPusher(t)
				most, pushes := 0, float32(0)
				for hour := range hours {
					for w := range workers {
						c := crowd(7, uint32(hour*workers+w))
						if owner != "one owner" {
							c = crowd(uint64(hour*workers+w), 0)
						}
						if err := p.openNow(c, 1); err != nil {
							t.Fatalf("hour %d, worker %d, %d sessions: %v", hour, w, p.all(), err)
						}
						for seq := range rowraft.Seq(2) {
							part := p.of(c, 1, seq+1)
							part.Floor = seq
							if got := p.parts(part)[0]; got.Err != nil || got.Duplicate {
								t.Fatalf("hour %d, worker %d: %+v", hour, w, got)
							}
							pushes++
						}
						p.now += uint64(time.Hour / workers / 2)
						before := p.count()
						end(p, c, w)
						pushes += p.count() - before
						p.now += uint64(time.Hour / workers / 2)
					}
					most = max(most, p.all())
				}
				if p.count() != pushes {
					t.Errorf("%v pushes applied, want %v", p.count(), pushes)
				}
				t.Logf("at most %d sessions at the end of an hour, %d evicted", most, p.Sessions.Evicted())
			})
		}
	}
}
