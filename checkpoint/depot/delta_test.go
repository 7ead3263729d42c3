package depot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/internal/testutil"
)

// manifestOf is that of an empty checkpoint; parent may be nil.
func manifestOf(t *testing.T, id string, age time.Duration, parent *checkpoint.Parent) []byte {
	t.Helper()
	key := fmt.Sprint(id, age, parent)
	if b, ok := manifests.Load(key); ok {
		return b.([]byte)
	}
	m := &checkpoint.Manifest{ID: id, Created: time.Unix(1e9, 0).Add(-age), Cluster: "c", Epoch: 1, HashVers: 1,
		Slots: rowraft.DefaultSlots, Parent: parent}
	p := checkpoint.ShardFile{
		Stream: checkpoint.File{Name: "shard-0000.rows"},
		Sums:   checkpoint.File{Name: "shard-0000.sums"},
	}
	for s := range rowraft.DefaultSlots {
		p.Slots = append(p.Slots, rowraft.Slot(s))
	}
	m.Shards = []checkpoint.ShardFile{p}
	b, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	manifests.Store(key, b)
	return b
}

// manifests are those that manifestOf made.
var manifests sync.Map

// putDelta makes an empty delta as the scheduler does, and leaves nothing if it fails.
func putDelta(ctx context.Context, t *testing.T, d Depot, name string, id uuid.UUID, parent, parentID string) error {
	c := NewClaim(d, parent, parentID, name, id)
	err := func() error {
		if err := c.Keep(ctx); err != nil {
			return err
		}
		if err := d.Put(ctx, name+"/shard-0000.rows", []byte("rows")); err != nil {
			return err
		}
		if err := d.PutNew(ctx, name+"/MANIFEST", manifestOf(t, id.String(), 0,
			&checkpoint.Parent{Name: parent, ID: parentID})); err != nil {
			return err
		}
		return c.Check(ctx)
	}()
	if err == nil {
		return nil
	}
	return errors.Join(err, d.Remove(ctx, name+"/MANIFEST", name+"/shard-0000.rows"), c.Drop(ctx))
}

func putBase(t *testing.T, d Depot, name, id string) {
	t.Helper()
	for file, b := range map[string][]byte{"/shard-0000.rows": []byte("rows"),
		"/MANIFEST": manifestOf(t, id, time.Hour, nil)} {
		if err := d.Put(t.Context(), name+file, b); err != nil {
			t.Fatal(err)
		}
	}
}

// states describes what lies in d.
func states(t *testing.T, d Depot) map[string]string {
	t.Helper()
	found, err := Scan(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, f := range found {
		switch {
		case f.Usable():
			out[f.Name] = fmt.Sprintf("usable %d", f.Deltas)
		case f.Manifest != nil:
			out[f.Name] = "broken"
		case f.Err != nil:
			out[f.Name] = "unreadable"
		default:
			out[f.Name] = "incomplete"
		}
	}
	return out
}

func TestADeltaKeepsItsParent(t *testing.T) {
	depots(t, func(t *testing.T, d Depot) {
		ctx := t.Context()
		b, c := uuid.UUID{1}, uuid.UUID{2}
		putBase(t, d, "a", "id-a")
		if err := putDelta(ctx, t, d, "b", b, "a", "id-a"); err != nil {
			t.Fatal(err)
		}
		if err := putDelta(ctx, t, d, "c-1", c, "b", b.String()); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"a": "usable 0", "b": "usable 1", "c-1": "usable 2"}
		if got := states(t, d); !maps.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		for name, by := range map[string]string{"a": "b", "b": "c-1"} {
			for _, dry := range []bool{true, false} {
				_, _, err := Delete(ctx, d, name, dry)
				testutil.WantCodeOf(t, "delete "+name, err, rowraft.CodeAlreadyExists)
				if err != nil && !strings.Contains(err.Error(), by) {
					t.Errorf("%v: it does not name %s", err, by)
				}
			}
		}
		if got := states(t, d); !maps.Equal(got, want) {
			t.Errorf("after refusals: %v, want %v", got, want)
		}
		names, n, _, err := DeleteTree(ctx, d, "b", true)
		if err != nil || !slices.Equal(names, []string{"c-1", "b"}) || n != 5 {
			t.Errorf("a dry run would delete %v, %d files, %v", names, n, err)
		}
		if _, _, err := Delete(ctx, d, "c-1", false); err != nil {
			t.Fatal(err)
		}
		if names, _, _, err = DeleteTree(ctx, d, "a", false); err != nil || !slices.Equal(names, []string{"b", "a"}) {
			t.Errorf("deleted %v, %v", names, err)
		}
		if left, err := d.List(ctx, ""); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	})
}

func TestParentsThatAreNoneKeepNothing(t *testing.T) {
	depots(t, func(t *testing.T, d Depot) {
		ctx := t.Context()
		for name, id := range map[string]string{"a": "another", "none": "id"} {
			putBase(t, d, "a", "id-a")
			testutil.WantCodeOf(t, name, putDelta(ctx, t, d, "b", uuid.UUID{1}, name, id), rowraft.CodeNotFound)
		}
		if err := d.Put(ctx, "a/DELETING-00000000", []byte("x")); err != nil {
			t.Fatal(err)
		}
		testutil.WantCodeOf(t, "a parent that goes", putDelta(ctx, t, d, "b", uuid.UUID{1}, "a", "id-a"),
			rowraft.CodeNotFound)
		if got := states(t, d); !maps.Equal(got, map[string]string{"a": "usable 0"}) {
			t.Errorf("%v: what begins to be deleted is what it was", got)
		}
		// A delta that was given up keeps its parent until what is left of it goes.
		if err := d.Put(ctx, "a/DELTA-b-01000000", []byte("x")); err != nil {
			t.Fatal(err)
		}
		_, _, err := Delete(ctx, d, "a", false)
		testutil.WantCodeOf(t, "a parent that a failed delta keeps", err, rowraft.CodeAlreadyExists)
		if _, _, err := Delete(ctx, d, "b", false); err != nil {
			t.Error(err)
		}
		if _, _, err := Delete(ctx, d, "a", false); err != nil {
			t.Error(err)
		}
		if left, err := d.List(ctx, ""); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	})
}

func TestDeltasWithoutTheirParent(t *testing.T) {
	depots(t, func(t *testing.T, d Depot) {
		put := func(name, id, parent, parentID string) {
			if err := d.Put(t.Context(), name+"/MANIFEST", manifestOf(t, id, 0,
				&checkpoint.Parent{Name: parent, ID: parentID})); err != nil {
				t.Fatal(err)
			}
		}
		putBase(t, d, "a", "id-a")
		put("b", "id-b", "a", "other")
		put("c", "id-c", "b", "id-b")
		put("x", "id-x", "y", "id-y") // they name each other
		put("y", "id-y", "x", "id-x")
		want := map[string]string{"a": "usable 0", "b": "broken", "c": "broken", "x": "broken", "y": "broken"}
		if got := states(t, d); !maps.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		if _, _, err := Delete(t.Context(), d, "a", false); err != nil {
			t.Errorf("no delta needs it: %v", err)
		}
		if _, _, _, err := DeleteTree(t.Context(), d, "b", false); err != nil {
			t.Error(err)
		}
	})
}

// stepped is a depot in memory whose users take turns, operation by operation.
type stepped struct {
	files map[string][]byte
}

// actor is one user of a stepped depot.
type actor struct {
	d       *stepped
	ready   chan bool // true: it waits for its turn; closed: it has ended
	turn    chan bool // false: it dies here
	crashed bool
}

var errCrashed = errors.New("the process is gone")

func (a *actor) step() error {
	if a.crashed {
		return errCrashed
	}
	a.ready <- true
	if !<-a.turn {
		a.crashed = true
		return errCrashed
	}
	return nil
}

func (a *actor) String() string { return "memory" }

func (a *actor) Write(ctx context.Context, name string, fill func(io.Writer) error) error {
	return errors.ErrUnsupported
}

func (a *actor) Put(_ context.Context, name string, content []byte) error {
	if err := a.step(); err != nil {
		return err
	}
	a.d.files[name] = content
	return nil
}

func (a *actor) PutNew(_ context.Context, name string, content []byte) error {
	if err := a.step(); err != nil {
		return err
	}
	if a.d.files[name] != nil {
		return rowraft.Errorf(rowraft.CodeAlreadyExists, "%s exists", name)
	}
	a.d.files[name] = content
	return nil
}

func (a *actor) Open(_ context.Context, name string) (io.ReadCloser, error) {
	if err := a.step(); err != nil {
		return nil, err
	}
	return a.d.open(name)
}

func (s *stepped) open(name string) (io.ReadCloser, error) {
	b, ok := s.files[name]
	if !ok {
		return nil, rowraft.Errorf(rowraft.CodeNotFound, "no %s", name)
	}
	return io.NopCloser(bytes.NewReader(b)), nil
}

func (a *actor) List(_ context.Context, name string) (out []Entry, err error) {
	if err := a.step(); err != nil {
		return nil, err
	}
	return a.d.list(name), nil
}

func (s *stepped) list(name string) (out []Entry) {
	for _, file := range slices.Sorted(maps.Keys(s.files)) {
		if name == "" || strings.HasPrefix(file, name+"/") {
			out = append(out, Entry{file, int64(len(s.files[file]))})
		}
	}
	return out
}

// Remove is a step for each file.
func (a *actor) Remove(_ context.Context, names ...string) error {
	for _, n := range names {
		if err := a.step(); err != nil {
			return err
		}
		delete(a.d.files, n)
	}
	return nil
}

// run lets the actors go in turns that next chooses among so many, as long as any
// is alive. An answer below 0 kills that actor, -1 the first.
func (s *stepped) run(actors []func(Depot), next func(alive int) int) {
	var alive []*actor
	for _, f := range actors {
		a := &actor{d: s, ready: make(chan bool), turn: make(chan bool)}
		go func() {
			defer close(a.ready)
			f(a)
		}()
		if <-a.ready {
			alive = append(alive, a)
		}
	}
	for len(alive) > 0 {
		i := next(len(alive))
		kill := i < 0
		if kill {
			i = -1 - i
		}
		alive[i].turn <- !kill
		if !<-alive[i].ready {
			alive = slices.Delete(alive, i, i+1)
		}
	}
}

// checkRace reports a delta that says it can be restored and cannot.
func (s *stepped) checkRace(t *testing.T, how string) (b bool) {
	t.Helper()
	found := map[string]*Found{}
	for _, e := range s.list("") {
		name, file, _ := strings.Cut(e.Name, "/")
		if file != "MANIFEST" {
			continue
		}
		m, err := checkpoint.ParseManifest(s.files[e.Name])
		if err != nil {
			t.Fatal(err)
		}
		found[name] = &Found{Name: name, Manifest: m}
	}
	delta := found["b"]
	if delta == nil {
		return false
	}
	if checkParents(found, delta); delta.Err != nil || s.files["a/shard-0000.rows"] == nil ||
		s.files["b/shard-0000.rows"] == nil {
		t.Fatalf("%s: the delta is there, what it needs is not: %v", how, slices.Sorted(maps.Keys(s.files)))
	}
	return true
}

// TestADeltaAndTheEndOfItsParent runs the two in every order of their operations,
// and with one of them dying at each of its own.
func TestADeltaAndTheEndOfItsParent(t *testing.T) {
	base := map[string][]byte{"a/MANIFEST": manifestOf(t, "id-a", time.Hour, nil), "a/shard-0000.rows": []byte("rows")}
	runs, made, deleted := 0, 0, 0
	for crash := -1; crash < 24; crash++ { // the operation that is the last one of who does it
		for choices := []int{}; ; {
			s := &stepped{files: maps.Clone(base)}
			at := 0
			s.run([]func(Depot){
				func(d Depot) { _ = putDelta(context.Background(), t, d, "b", uuid.UUID{1}, "a", "id-a") },
				func(d Depot) { _, _, _ = Delete(context.Background(), d, "a", false) },
			}, func(alive int) int {
				if at == len(choices) {
					choices = append(choices, 0)
				}
				i := min(choices[at], alive-1)
				if alive == 1 {
					choices[at] = 1 // nothing else to try
				}
				at++
				if at-1 == crash {
					return -1 - i
				}
				return i
			})
			runs++
			if s.checkRace(t, fmt.Sprintf("turns %v, a crash at %d", choices, crash)) {
				made++
			}
			if s.files["a/MANIFEST"] == nil {
				deleted++
			}
			choices = choices[:at]
			for len(choices) > 0 && choices[len(choices)-1] == 1 {
				choices = choices[:len(choices)-1]
			}
			if len(choices) == 0 {
				break
			}
			choices[len(choices)-1]++
		}
	}
	t.Logf("%d runs: the delta was made in %d, its parent deleted in %d", runs, made, deleted)
	if made == 0 || deleted == 0 {
		t.Error("one of them never succeeds")
	}
}

// TestADeltaAndManyEnds: in random turns, with deaths, two delete the parent while
// the delta is made; and without deaths, one deletes the delta and then its parent.
func TestADeltaAndManyEnds(t *testing.T) {
	base := map[string][]byte{"a/MANIFEST": manifestOf(t, "id-a", time.Hour, nil), "a/shard-0000.rows": []byte("rows")}
	create := func(d Depot) { _ = putDelta(context.Background(), t, d, "b", uuid.UUID{1}, "a", "id-a") }
	end := func(names ...string) func(Depot) {
		return func(d Depot) {
			for _, name := range names {
				_, _, _ = Delete(context.Background(), d, name, false)
			}
		}
	}
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		actors, deaths := []func(Depot){create, end("a"), end("a")}, true
		if seed%2 == 1 {
			actors, deaths = []func(Depot){create, end("b", "a")}, false
		}
		s := &stepped{files: maps.Clone(base)}
		s.run(actors, func(alive int) int {
			i := rng.IntN(alive)
			if deaths && rng.IntN(40) == 0 {
				return -1 - i
			}
			return i
		})
		s.checkRace(t, fmt.Sprintf("seed %d", seed))
	}
}
