package client

import (
	"context"
	"encoding/binary"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cache"
	"github.com/rowraft/rowraft/internal/elapsed"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// versionServer answers every pull with rows of the number of its pulls, or of frozen, which is also their version. It
// counts the keys it was asked for, and those that it left out.
type versionServer struct {
	fakeServer
	pulls, keys, left atomic.Int64
	epoch, frozen     atomic.Uint64
	plain             atomic.Bool // the server ignores versions
}

func (s *versionServer) answer(_ context.Context, req *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
	reply := &rowraftv1.PullReply{TableEpoch: s.epoch.Load()}
	now := uint32(s.pulls.Add(1))
	if frozen := s.frozen.Load(); frozen > 0 {
		now = uint32(frozen)
	}
	for rest := req.Payload; len(rest) > 0; {
		ask, body, next, err := wire.ParseSegment(rest)
		if err != nil {
			return nil, err
		}
		rest = next
		s.keys.Add(int64(ask.N))
		if s.plain.Load() {
			ask.Flags, body.Known = wire.FlagNoValues, nil
		}
		ask.Flags = wire.FlagNoKeys | ask.Flags&wire.FlagVersions
		at, left := len(reply.Payload), 0
		reply.Payload = append(reply.Payload, make([]byte, ask.Size())...)
		out := ask.Put(reply.Payload[at:])
		for i := range ask.N {
			if len(body.Known) > 0 && req.KnownEpoch == reply.TableEpoch && binary.LittleEndian.Uint32(body.Known[4*i:]) == now {
				out.Unchanged[i/8] |= 1 << (i % 8)
				left++
				continue
			}
			row := out.Values[:ask.RowBytes()]
			out.Values = out.Values[len(row):]
			if ask.Flags&wire.FlagVersions != 0 {
				binary.LittleEndian.PutUint32(row, now)
				row = row[4:]
			}
			for j := 0; j < len(row); j += 4 {
				binary.LittleEndian.PutUint32(row[j:], math.Float32bits(float32(now)))
			}
		}
		reply.Payload = reply.Payload[:at+ask.LeaveOut(reply.Payload[at:], left)]
		s.left.Add(int64(left))
	}
	return reply, nil
}

func newVersionServer(t *testing.T) (*versionServer, *Client, *Table) {
	s := &versionServer{}
	s.epoch.Store(1)
	s.pull = s.answer
	s.serve(t, 1)
	c, table := s.dial(t, func(o *Options) { o.CacheBytes = cache.MinBytes })
	return s, c, table
}

func TestPullsReuseCopies(t *testing.T) {
	s, c, table := newVersionServer(t)
	pull := func(r Reuse, keys ...rowraft.Key) []float32 {
		t.Helper()
		values := make([]float32, 2*len(keys))
		if err := c.Pull(patience(t), Segment{Table: table, Keys: keys, Values: values, Reuse: r}); err != nil {
			t.Fatal(err)
		}
		first := make([]float32, len(keys))
		for i := range first {
			if values[2*i] != values[2*i+1] {
				t.Fatalf("row %d is of two pulls: %v", keys[i], values[2*i:2*i+2])
			}
			first[i] = values[2*i]
		}
		return first
	}
	steps := func(now, most uint64) Reuse { return Reuse{Now: now, Since: now - most} }
	for _, step := range []struct {
		name string
		ask  Reuse
		keys []rowraft.Key
		want []float32
		sent int64 // keys that the server is asked for
	}{
		{"no copies yet", steps(10, 2), []rowraft.Key{1, 2}, []float32{1, 1}, 2},
		{"copies of 2 steps before", steps(12, 2), []rowraft.Key{1, 3, 2}, []float32{1, 2, 1}, 1},
		{"one step more is too old", steps(13, 2), []rowraft.Key{1, 3}, []float32{3, 2}, 1},
		{"all are there", steps(13, 2), []rowraft.Key{3, 1, 1}, []float32{2, 3, 3}, 0},
		{"staleness 0", steps(14, 0), []rowraft.Key{1, 3}, []float32{4, 4}, 2},
		{"without Reuse", Reuse{}, []rowraft.Key{1}, []float32{5}, 1},
		{"which makes no copies", steps(14, 1), []rowraft.Key{1}, []float32{4}, 0},
	} {
		before := s.keys.Load()
		if got := pull(step.ask, step.keys...); !slices.Equal(got, step.want) {
			t.Errorf("%s: rows of pulls %v, want %v", step.name, got, step.want)
		}
		if sent := s.keys.Load() - before; sent != step.sent {
			t.Errorf("%s: the server was asked for %d rows, want %d", step.name, sent, step.sent)
		}
	}
	if got, want := c.Copies(), (Copies{Hits: 7, Stale: 3, Misses: 3, Age: 2*2 + 1 + 1}); got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
	// A restore: the reply for row 4 is of the next epoch, so row 1 is pulled again, and its copy is dropped.
	s.epoch.Store(2)
	if got, want := pull(steps(14, 9), 1, 4), []float32{7, 7}; !slices.Equal(got, want) {
		t.Errorf("after a restore: rows of pulls %v, want %v", got, want)
	}
	if got, want := pull(steps(14, 9), 1), []float32{8}; !slices.Equal(got, want) {
		t.Errorf("after a restore a copy from before it was used: of pull %v", got)
	}
	if got, want := pull(steps(14, 9), 1), []float32{8}; !slices.Equal(got, want) {
		t.Errorf("there are no copies after a restore: of pull %v, want %v", got, want)
	}
}

// Copies that are too old are sent again only if the rows have changed since, and only within an epoch.
func TestUnchangedRowsAreNotSent(t *testing.T) {
	s, c, table := newVersionServer(t)
	for _, step := range []struct {
		name           string
		now, rows      uint64
		epoch          uint64
		plain          bool
		keys           []rowraft.Key
		asked, leftOut int64
	}{
		{"no copies yet", 1, 7, 1, false, []rowraft.Key{1, 2, 3}, 3, 0},
		{"nothing has changed", 5, 7, 1, false, []rowraft.Key{3, 1, 2}, 3, 3},
		{"the copies are new", 5, 7, 1, false, []rowraft.Key{1, 2, 3}, 0, 0},
		{"one is not there", 6, 7, 1, false, []rowraft.Key{1, 4, 2}, 3, 2},
		{"all have changed", 7, 8, 1, false, []rowraft.Key{1, 2, 3, 4}, 4, 0},
		{"a restore", 8, 8, 2, false, []rowraft.Key{1, 2, 3, 4}, 4, 0},
		{"after it", 9, 8, 2, false, []rowraft.Key{1, 2, 3, 4}, 4, 4},
		{"a server without versions", 10, 9, 2, true, []rowraft.Key{1, 2, 3, 4}, 4, 0},
		{"no version is known", 11, 9, 2, false, []rowraft.Key{1, 2}, 2, 0},
		{"now it is", 12, 9, 2, false, []rowraft.Key{1, 2}, 2, 2},
	} {
		s.frozen.Store(step.rows)
		s.epoch.Store(step.epoch)
		s.plain.Store(step.plain)
		asked, left, known := s.keys.Load(), s.left.Load(), c.Copies().Unchanged
		values := make([]float32, 2*len(step.keys))
		seg := Segment{Table: table, Keys: step.keys, Values: values, Reuse: Reuse{Now: step.now, Since: step.now}}
		if err := c.Pull(patience(t), seg); err != nil {
			t.Fatal(err)
		}
		for _, v := range values {
			if v != float32(step.rows) {
				t.Errorf("%s: rows %v, want %d", step.name, values, step.rows)
				break
			}
		}
		asked, left, known = s.keys.Load()-asked, s.left.Load()-left, c.Copies().Unchanged-known
		if asked != step.asked || left != step.leftOut || int64(known) != left {
			t.Errorf("%s: asked for %d rows, %d were left out, %d counted: want %d and %d", step.name, asked, left, known,
				step.asked, step.leftOut)
		}
	}
}

func TestReuseThatCannotBe(t *testing.T) {
	s, c, table := newVersionServer(t)
	pull := func(how Read, r Reuse) error {
		_, err := c.PullWith(patience(t), how, Segment{Table: table, Keys: []rowraft.Key{1}, Values: make([]float32, 2),
			Reuse: r})
		return err
	}
	err := pull(Read{Mode: Linearizable}, Reuse{MaxAge: time.Second})
	if rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("a linearizable read with copies: %v", err)
	}
	if err := pull(Read{}, Reuse{MaxAge: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if err := pull(Read{}, Reuse{Now: 9, Since: 1}); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("a bound in steps after one in time: %v", err)
	}
	before := s.pulls.Load()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	seg := Segment{Table: table, Keys: []rowraft.Key{1}, Values: make([]float32, 2), Reuse: Reuse{MaxAge: time.Hour}}
	if err := c.Pull(ended, seg); err == nil {
		t.Error("a pull from copies with an ended context succeeds")
	}
	if err := c.Pull(patience(t), seg); err != nil || s.pulls.Load() != before {
		t.Errorf("%v, %d pulls: want an answer from the copy", err, s.pulls.Load()-before)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.Pull(t.Context(), seg); rowraft.CodeOf(err) != rowraft.CodeClosing {
		t.Errorf("a pull from copies of a closed client: %v", err)
	}
}

func TestCopiesByAge(t *testing.T) {
	s, c, table := newVersionServer(t)
	asleep := time.Duration(0)
	c.clock = elapsed.NewClock(func() int64 { return int64(asleep) })
	pull := func(age time.Duration) {
		t.Helper()
		err := c.Pull(patience(t), Segment{Table: table, Keys: []rowraft.Key{1}, Values: make([]float32, 2),
			Reuse: Reuse{MaxAge: age}})
		if err != nil {
			t.Fatal(err)
		}
	}
	pull(time.Hour)
	pull(time.Hour)
	if n := s.pulls.Load(); n != 1 {
		t.Errorf("%d pulls: a copy of less than an hour must answer the second", n)
	}
	pull(time.Nanosecond)
	if n := s.pulls.Load(); n != 2 {
		t.Errorf("%d pulls: a copy is older than a nanosecond", n)
	}
	asleep = 2 * time.Hour // Go's clock stops meanwhile
	pull(time.Hour)
	if n := s.pulls.Load(); n != 3 {
		t.Errorf("%d pulls: a copy is older than an hour if the machine slept for longer", n)
	}
}

// Presence and the applied index are not in copies.
func TestASegmentThatAsksForMoreUsesNoCopies(t *testing.T) {
	s, c, table := newVersionServer(t)
	for range 2 {
		err := c.Pull(patience(t), Segment{Table: table, Keys: []rowraft.Key{1}, Values: make([]float32, 2),
			Reuse: Reuse{MaxAge: time.Hour}, Applied: map[rowraft.ShardID]rowraft.Index{}})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := s.pulls.Load(); n != 2 {
		t.Errorf("%d pulls, want 2", n)
	}
}
