package cli

import (
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

// IsTerminal reports whether w is a terminal that can move its cursor.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb"
}

// LineEvery is the interval of progress lines when the output is no terminal.
const LineEvery = 5 * time.Second

// RunView shows a long run: events on lines of their own, and its progress as one bar on a terminal, otherwise as a
// line at intervals. Safe for concurrent use.
type RunView struct {
	Start time.Time

	out  io.Writer
	text atomic.Pointer[string] // text next to the bar; the bar's goroutine reads it

	mu       sync.Mutex
	bars     *mpb.Progress // nil without a terminal, and after Done
	bar      *mpb.Bar
	lastLine time.Time
}

// NewRunView returns a view that writes to out.
func NewRunView(out io.Writer) *RunView { return newRunView(out, IsTerminal(out)) }

func newRunView(out io.Writer, bars bool) *RunView {
	v := &RunView{out: out, Start: time.Now()}
	if bars {
		v.bars = mpb.New(mpb.WithOutput(out), mpb.WithWidth(30), mpb.WithRefreshRate(150*time.Millisecond))
	}
	return v
}

// Event prints a line with the time since the start.
func (v *RunView) Event(format string, args ...any) {
	v.Line(fmt.Sprintf("%6.1fs  ", time.Since(v.Start).Seconds()) + fmt.Sprintf(format, args...))
}

// Line prints a line.
func (v *RunView) Line(text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.bars != nil {
		_, _ = v.bars.Write([]byte(text + "\n"))
		return
	}
	fmt.Fprintln(v.out, text)
}

// Progress shows how much of the run is done. There is no bar until total is known.
func (v *RunView) Progress(done, total int64, text string) {
	v.mu.Lock()
	bars, now := v.bars != nil, time.Now()
	due := !bars && now.Sub(v.lastLine) >= LineEvery
	if due {
		v.lastLine = now
	}
	if bars && total > 0 {
		v.text.Store(&text)
		if v.bar == nil {
			v.bar = v.bars.New(total, mpb.BarStyle(), mpb.BarRemoveOnComplete(),
				mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return " " + *v.text.Load() })))
		}
		v.bar.SetCurrent(min(done, total-1)) // Done completes it
	}
	v.mu.Unlock()
	if due {
		v.Event("%s", text)
	}
}

// Done removes the bar. It may be called twice.
func (v *RunView) Done() {
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
