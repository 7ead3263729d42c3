package demo

import (
	"fmt"
	"io"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/rowraft/rowraft/internal/localcluster"
)

// view shows a running demo: a bar on a terminal, otherwise a line every five seconds. Events are printed on their
// own lines. Only one goroutine uses it.
type view struct {
	out      io.Writer
	start    time.Time
	bars     *mpb.Progress // nil off a terminal
	bar      *mpb.Bar
	text     string // right of the bar
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
	line := fmt.Sprintf("%6.1fs  %s\n", time.Since(v.start).Seconds(), fmt.Sprintf(format, args...))
	if v.bars != nil {
		_, _ = v.bars.Write([]byte(line))
		return
	}
	fmt.Fprint(v.out, line)
}

// progress shows the progress of the training.
func (v *view) progress(t localcluster.TrainerEvent) {
	if v.bars == nil {
		if now := time.Now(); now.Sub(v.lastLine) >= lineEvery {
			v.lastLine = now
			v.event("%s", progressText(t, v.start))
		}
		return
	}
	v.text = progressText(t, v.start)
	if v.bar == nil {
		if t.Steps == 0 {
			return
		}
		v.bar = v.bars.New(t.Steps, mpb.BarStyle(), mpb.BarRemoveOnComplete(),
			mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return " " + v.text })))
	}
	v.bar.SetCurrent(min(t.Step, t.Steps-1)) // done() completes it
}

// done removes the bar.
func (v *view) done() {
	if v.bars == nil {
		return
	}
	if v.bar != nil {
		v.bar.Abort(true)
	}
	v.bars.Wait()
	v.bars, v.bar = nil, nil
}

func progressText(t localcluster.TrainerEvent, start time.Time) string {
	left := "?"
	if elapsed := time.Since(start); elapsed > 3*time.Second && t.Step > 0 && t.Steps > 0 { // too early for an estimate
		left = time.Duration(float64(elapsed) / float64(t.Step) * float64(t.Steps-t.Step)).Round(time.Second).String()
	}
	return fmt.Sprintf("step %d/%d  loss %s  AUC %s  %.0f examples/s  %s left",
		t.Step, t.Steps, decimals(t.Loss), decimals(t.AUC), float64(t.ExamplesPerSecond), left)
}

func decimals(n localcluster.Number) string {
	if !n.Known() || n == 0 {
		return "–"
	}
	return fmt.Sprintf("%.4f", float64(n))
}
