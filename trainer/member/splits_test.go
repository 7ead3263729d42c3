package member

import (
	"go.uber.org/goleak"

	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/trainer/data"
)

// giver gives the splits of a plan to one trainer, and holds back the last until the test releases it.
type giver struct {
	plan   jobs.SplitPlan
	offset int64 // of the first part
	mu     sync.Mutex
	held   bool // the last part is another worker's
	ended  []int64
}

func (g *giver) NextSplit(_ context.Context, take int64, _ int) (jobs.Split, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	parts := (g.plan.Examples + g.plan.SplitExamples - 1) / g.plan.SplitExamples
	if take > parts*g.plan.Epochs {
		return jobs.Split{}, jobs.ErrNoSplits
	}
	if g.held && take == parts*g.plan.Epochs {
		return jobs.Split{}, jobs.ErrSplitsHeld
	}
	p := jobs.Split{Epoch: (take - 1) / parts, Number: (take - 1) % parts}
	p.From = p.Number * g.plan.SplitExamples
	p.To = min(p.From+g.plan.SplitExamples, g.plan.Examples)
	if take == 1 {
		p.Offset = g.offset
	}
	return p, nil
}

func (g *giver) EndSplit(_ context.Context, p jobs.Split) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = append(g.ended, p.Epoch*100+p.Number)
	return nil
}

func testGenerator(t *testing.T, examples int64) *data.Generator {
	t.Helper()
	cfg := data.DefaultGenerator()
	cfg.Examples, cfg.Held = examples, 10
	set, err := data.NewGenerator(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func newSplits(ctx context.Context, set data.Set, source Source) *Splits {
	d := NewSplits(set, source, jobs.SplitPlan{}, false)
	d.Open(ctx, 0)
	return d
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// passes counts how often a file is read from its beginning.
type passes struct {
	*data.Files
	opened int
}

func (p *passes) Range(epoch, from, to int64) (data.Source, error) {
	p.opened++
	return p.Files.Range(epoch, from, to)
}

// A trainer reads a file once an epoch, however many splits it has. A split that was begun by another trainer is read
// from its offset.
func TestAFileIsReadOnceAnEpoch(t *testing.T) {
	dir := t.TempDir()
	path, schema := filepath.Join(dir, "clicks.csv"), filepath.Join(dir, "clicks.yaml")
	text := "clicked,ad\n"
	for i := range 105 {
		text += fmt.Sprintf("%d,a%d\n", i%2, i)
	}
	for path, text := range map[string]string{path: text,
		schema: "label: {column: clicked}\ncategorical: [{column: ad}]\n"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	sc, err := data.LoadSchema(schema)
	if err != nil {
		t.Fatal(err)
	}
	f, err := data.OpenFiles(data.Paths{path}, sc, data.Options{Held: 0.05})
	if err != nil {
		t.Fatal(err)
	}
	set := &passes{Files: f}
	d := newSplits(t.Context(), set, &giver{plan: jobs.SplitPlan{Examples: 100, SplitExamples: 12, Epochs: 3}, offset: 5})
	defer d.Close()
	hasher := data.NewHasher("ad")
	b := data.NewBatch(4, set.Shape())
	for next := int64(5); next < 300; next += int64(b.N) {
		if _, err := d.Next(b); err != nil {
			t.Fatal(err)
		}
		for i := range b.N {
			if want := fmt.Sprintf("a%d", next%100+int64(i)); b.First != next%100 || b.Keys[i] != hasher.Key([]byte(want)) {
				t.Fatalf("example %d of the batch from %d is not %s", i, b.First, want)
			}
		}
	}
	if _, err := d.Next(b); err != io.EOF || set.opened != 3 {
		t.Errorf("3 epochs have read the file %d times, then %v", set.opened, err)
	}
}

// A trainer reads splits one after the other, from their offsets, and ends one when all of its batches are
// acknowledged, in any order.
func TestPartsAreReadAndEnded(t *testing.T) {
	set := testGenerator(t, 250)
	g := &giver{plan: jobs.SplitPlan{Examples: 250, SplitExamples: 100, Epochs: 1}, offset: 40, held: true}
	d := newSplits(t.Context(), set, g)
	defer d.Close()
	var list []Range
	var first []int64
	b := data.NewBatch(32, set.Shape())
	for len(list) < 6 {
		r, err := d.Next(b)
		if err != nil {
			t.Fatal(err)
		}
		list, first = append(list, r.Range), append(first, b.First)
	}
	if want := []int64{40, 72, 100, 132, 164, 196}; !slices.Equal(first, want) {
		t.Fatalf("the batches begin at %v, want %v", first, want)
	}
	if _, err := d.Next(b); !errors.Is(err, data.ErrNoneYet) {
		t.Fatalf("while another worker has the last part: %v", err)
	}
	ack := func(i int) {
		t.Helper()
		if err := list[i].Done(); err != nil {
			t.Fatal(err)
		}
	}
	ack(1)
	ack(5)
	ack(3)
	if got := d.Reached(); len(got) != 2 || got[0].Acknowledged != 40 || got[0].Read != 100 ||
		got[1].Acknowledged != 0 || got[1].Read != 100 {
		t.Errorf("reached %v", got)
	}
	ack(2)
	if got := d.Reached(); got[1].Acknowledged != 64 {
		t.Errorf("with three of its batches acknowledged, the part is at %v", got[1])
	}
	ack(4)
	if err := d.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(g.ended, []int64{1}) {
		t.Errorf("ended: %v, want part 1", g.ended)
	}
	if err := d.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.mu.Lock()
	g.held = false
	g.mu.Unlock()
	r, err := d.Next(b)
	for err == data.ErrNoneYet {
		r, err = d.Next(b)
	}
	if err != nil || b.First != 200 || r.Batch != 7 {
		t.Fatalf("the last part: batch %d from %d, %v", r.Batch, b.First, err)
	}
	list = append(list, r.Range)
	if r, err = d.Next(b); err != nil || b.N != 18 {
		t.Fatalf("its end: %d examples, %v", b.N, err)
	}
	list = append(list, r.Range)
	if _, err := d.Next(b); err != io.EOF {
		t.Fatalf("at the end: %v", err)
	}
	for _, i := range []int{7, 6, 0} {
		ack(i)
	}
	if err := d.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(g.ended, []int64{1, 2, 0}) || len(d.Reached()) != 0 {
		t.Errorf("ended: %v, still held: %v", g.ended, d.Reached())
	}
}

// A trainer ends a split of which nothing is left, because its last reader died before it could report the end.
func TestAPartThatIsReadIsEnded(t *testing.T) {
	set := testGenerator(t, 250)
	g := &giver{plan: jobs.SplitPlan{Examples: 250, SplitExamples: 100, Epochs: 1}, offset: 100}
	d := newSplits(t.Context(), set, g)
	defer d.Close()
	b := data.NewBatch(32, set.Shape())
	_, err := d.Next(b)
	if err := errors.Join(err, d.Flush(t.Context())); err != nil || b.First != 100 ||
		!slices.Equal(g.ended, []int64{0}) {
		t.Errorf("the first batch begins at %d, ended are %v, %v", b.First, g.ended, err)
	}
}

// The push of a step, or with a clock, stores how far all of this trainer's splits are acknowledged, and where the
// batch ends in its own.
func TestPushesCarryPositions(t *testing.T) {
	plan := jobs.SplitPlan{Examples: 300, SplitExamples: 100, Epochs: 2, InLog: true}
	one := &heldSplit{Split: jobs.Split{Number: 1, Reading: 1}, acked: 32}
	two := &heldSplit{Split: jobs.Split{Epoch: 1, Reading: 1}, acked: 0}
	d := &Splits{plan: plan, held: []*heldSplit{two, one}}
	want := []rowraft.Position{{ID: 514, Offset: 32}, {ID: 515, Offset: 64}, {ID: 1538, Offset: 0}}
	if got := d.positions(Range{d, one, 32, 64}); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	want = []rowraft.Position{{ID: 514, Offset: 32}, {ID: 1538, Offset: 0}}
	if got := d.positions(Range{}); !slices.Equal(got, want) {
		t.Errorf("without a batch: %v, want %v", got, want)
	}
	d.plan.InLog = false
	if got := d.positions(Range{d, one, 32, 64}); got != nil {
		t.Errorf("a job that the shards do not know: %v", got)
	}
}
