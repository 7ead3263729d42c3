package main

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// view shows the progress of a run: one bar on a terminal, otherwise a line every five seconds. Events have
// lines of their own. Safe for concurrent use.
type view struct {
	out   io.Writer
	start time.Time

	text atomic.Pointer[string] // text next to the bar; the bar's goroutine reads it

	mu       sync.Mutex
	bars     *mpb.Progress // nil without a terminal
	bar      *mpb.Bar
	lastLine time.Time
}

const lineEvery = 5 * time.Second

func newView(out io.Writer, terminal bool) *view {
	v := &view{out: out, start: time.Now()}
	if terminal {
		v.bars = mpb.New(mpb.WithOutput(out), mpb.WithWidth(30), mpb.WithRefreshRate(150*time.Millisecond))
	}
	return v
}

// event prints a line for an event.
func (v *view) event(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.eventLocked(fmt.Sprintf(format, args...))
}

func (v *view) eventLocked(text string) {
	v.lineLocked(fmt.Sprintf("%6.1fs  %s\n", time.Since(v.start).Seconds(), text))
}

// line prints a text that contains its own time.
func (v *view) line(text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lineLocked(text + "\n")
}

func (v *view) lineLocked(line string) {
	if v.bars != nil {
		_, _ = v.bars.Write([]byte(line))
		return
	}
	fmt.Fprint(v.out, line)
}

// progress shows how much of the run is done.
func (v *view) progress(done, total time.Duration, text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.bars == nil {
		if now := time.Now(); now.Sub(v.lastLine) >= lineEvery {
			v.lastLine = now
			v.eventLocked(text)
		}
		return
	}
	v.text.Store(&text)
	if v.bar == nil {
		v.bar = v.bars.New(int64(total), mpb.BarStyle(), mpb.BarRemoveOnComplete(),
			mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return " " + *v.text.Load() })))
	}
	v.bar.SetCurrent(min(int64(done), int64(total)-1)) // done() completes it
}

// done removes the bar.
func (v *view) done() {
	v.mu.Lock()
	bars, bar := v.bars, v.bar
	v.bars, v.bar = nil, nil
	v.mu.Unlock()
	if bar != nil {
		bar.Abort(true)
	}
	if bars != nil {
		bars.Wait()
	}
}
