package reference

import (
	"bytes"
	"encoding/binary"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

// crowdOf is client n of an owner.
func crowdOf(owner, n uint64) (c rowraft.ClientID) {
	binary.BigEndian.PutUint64(c[:], owner)
	binary.BigEndian.PutUint64(c[8:], n)
	return c
}

// fullShard is a snapshot of a shard with nearly as many sessions as it remembers, nearly
// as many of them of owner 5 as one may have, and nearly as many that are over as it lists.
var fullShard = sync.OnceValue(func() []byte {
	m, err := shard.New(shard.Config{Shard: 1, Slots: someSlots()})
	if err != nil {
		panic(err)
	}
	defer m.Close()
	index, now := rowraft.Index(0), uint64(1)
	apply := func(make func(wire.EntryHeader) []byte) {
		index++
		now += second / 100
		m.Apply(index, make(wire.EntryHeader{Version: 1, Epoch: 1, LogTime: now}))
	}
	open := func(c rowraft.ClientID, inc rowraft.Incarnation) {
		apply(func(h wire.EntryHeader) []byte {
			return wire.OpenSessionEntry(h, wire.Opening{Client: c, Incarnation: inc, Ticket: index})
		})
	}
	for n := range uint64(maxOver - 3) {
		open(crowdOf(4, n%3), rowraft.Incarnation(1+n))
		apply(func(h wire.EntryHeader) []byte {
			return wire.CloseSessionEntry(h, crowdOf(4, n%3), rowraft.Incarnation(1+n))
		})
	}
	for n := range uint64(maxSessions - 3) {
		owner := uint64(5)
		if n >= maxOwnerSessions-3 {
			owner = 1000 + n
		}
		c := crowdOf(owner, n)
		open(c, 1)
		if n%3 > 0 { // one in three is not used, one has a gap
			apply(func(h wire.EntryHeader) []byte {
				return entryOf(h, wire.Part{Client: c, Incarnation: 1, Seq: rowraft.Seq(n % 3), Op: wire.OpPush})
			})
		}
	}
	s, err := m.Snapshot()
	if err != nil {
		panic(err)
	}
	defer s.Release()
	var b bytes.Buffer
	if _, err := s.WriteTo(&b); err != nil {
		panic(err)
	}
	return b.Bytes()
})

// TestSessionsAgainstReference: sessions open, are used, close and make room in a shard that
// is nearly full, after pauses of all lengths.
func TestSessionsAgainstReference(t *testing.T) {
	// The times are those of docs/formats/entry.md, which a draw may not tell apart.
	if shard.UnusedAfter != 10*second || shard.IdleAfter != 60*second || shard.SilentAfter != 3600*second ||
		shard.SessionTTL != sessionTTL {
		t.Errorf("sessions make room after %v, %v, %v and %v",
			shard.UnusedAfter, shard.IdleAfter, shard.SilentAfter, shard.SessionTTL)
	}
	full := fullShard()
	rapid.Check(t, func(rt *rapid.T) {
		c := drawConfig(rt)
		ref, err := Load(c.SlotCount, c.Slots, full)
		if err != nil {
			rt.Fatal(err)
		}
		d := &duel{t: rt, config: c, ref: ref, restarted: newMachine(rt, c), plain: newMachine(rt, c)}
		defer func() { d.restarted.Close(); d.plain.Close() }()
		for _, m := range []*shard.Machine{d.restarted, d.plain} {
			if err := m.Restore(bytes.NewReader(full)); err != nil {
				rt.Fatal(err)
			}
		}
		client := func() rowraft.ClientID {
			n := rapid.Uint64Range(0, 9).Draw(rt, "n")
			switch rapid.IntRange(0, 3).Draw(rt, "who") {
			case 0: // new ones of the full owner
				return crowdOf(5, 1<<40+n)
			case 1: // known ones
				return crowdOf(5, n)
			case 2:
				return crowdOf(4, n%3)
			}
			return crowdOf(1<<40+n, 0)
		}
		for range rapid.IntRange(1, 40).Draw(rt, "entries") {
			pause := rapid.SampledFrom([]uint64{0, second, 11 * second, 61 * second, 1200 * second, 3601 * second,
				sessionTTL + 1}).Draw(rt, "pause")
			h := wire.EntryHeader{Version: 1, Epoch: 1, LogTime: d.ref.LogTime + pause}
			who := client()
			inc := rowraft.Incarnation(rapid.SampledFrom([]uint64{0, 1, 2, 3, maxOver - 4, maxOver, maxOver + 1}).Draw(rt,
				"incarnation"))
			if s := d.ref.Sessions[who]; s != nil && rapid.Bool().Draw(rt, "its") {
				inc = s.Incarnation
			}
			switch rapid.IntRange(0, 5).Draw(rt, "kind") {
			case 0, 1, 2:
				o := wire.Opening{Client: who, Incarnation: inc, Ticket: d.ref.Applied}
				switch rapid.IntRange(0, 5).Draw(rt, "ticket") {
				case 0:
					o.Ticket = d.ref.OverFloor
				case 1:
					o.Ticket = max(d.ref.OverFloor, 1) - 1
				}
				d.take(wire.OpenSessionEntry(h, o))
			case 3:
				d.take(wire.CloseSessionEntry(h, who, inc))
			default:
				p := wire.Part{Client: who, Incarnation: inc, Seq: 1, Op: wire.OpPush}
				if s := d.ref.Sessions[who]; s != nil {
					p.Floor = s.Floor
					p.Seq = s.Floor + rowraft.Seq(rapid.IntRange(1, 4).Draw(rt, "seq"))
				}
				d.take(entryOf(h, p))
			}
		}
		for _, m := range []*shard.Machine{d.restarted, d.plain} {
			d.compareStream(d.stream(m), d.ref)
		}
	})
}
