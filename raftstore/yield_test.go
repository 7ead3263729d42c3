package raftstore

import (
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// fakeYield is a snapshot of 64 MiB and a log that grows by perMs bytes per millisecond.
type fakeYield struct {
	begin   time.Time
	perMs   int64
	images  float64 // share of the state
	writing bool
	hurried bool
}

const fakeState = 64 << 20

func (f *fakeYield) Bytes() int64      { return fakeState }
func (f *fakeYield) ImageBytes() int64 { return int64(f.images * fakeState) }

func (f *fakeYield) write() (took time.Duration) {
	f.begin = time.Now()
	w := &yieldingWriter{w: io.Discard, yield: &yield{
		snap: f, budget: 170 << 20,
		log:     func() int64 { return f.perMs * time.Since(f.begin).Milliseconds() },
		writing: func() bool { return f.writing },
		hurry:   func() bool { return f.hurried },
	}}
	for range fakeState >> 18 {
		w.Write(make([]byte, 1<<18))
	}
	return time.Since(f.begin)
}

// TestSnapshotsYield: the writer of a snapshot waits while a log is written, unless the log or the old images become
// too large, and never while no log is written.
func TestSnapshotsYield(t *testing.T) {
	for _, tc := range []struct {
		name     string
		fake     fakeYield
		from, to time.Duration
	}{
		{"no pushes", fakeYield{}, 0, 0},
		{"little is pushed", fakeYield{perMs: 1 << 10, writing: true}, 5 * time.Second, 5200 * time.Millisecond},
		{"much is pushed: a third of the log between two", fakeYield{perMs: 200 << 10, writing: true}, 830 * time.Millisecond,
			880 * time.Millisecond},
		{"the images take a tenth of the state", fakeYield{perMs: 1 << 10, images: 0.11, writing: true}, 0,
			10 * time.Millisecond},
		{"half of that: the first part hurries", fakeYield{perMs: 1 << 10, images: 0.05, writing: true},
			4200 * time.Millisecond, 4600 * time.Millisecond},
		{"a follower waits for it", fakeYield{perMs: 1 << 10, writing: true, hurried: true}, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if took := tc.fake.write(); took < tc.from || took > tc.to {
					t.Errorf("it took %v, want %v to %v", took, tc.from, tc.to)
				}
			})
		})
	}
}
