package main

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

// meterEvery is how often progress off a terminal says something.
const meterEvery = 5 * time.Second

// meter shows how far a long command is: a bar with rate and time left on a
// terminal, a line now and then elsewhere. set may be called from any goroutine;
// done ends it and may be called twice.
type meter struct {
	what  string
	out   io.Writer
	total atomic.Int64
	at    atomic.Int64

	bars *mpb.Progress // nil off a terminal
	bar  *mpb.Bar

	started  time.Time
	nextLine atomic.Int64 // UnixNano
}

// newMeter measures bytes.
func newMeter(out io.Writer, what string) *meter {
	m := &meter{what: what, out: out, started: time.Now()}
	m.nextLine.Store(m.started.Add(meterEvery).UnixNano())
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" {
		m.bars = mpb.New(mpb.WithOutput(out), mpb.WithWidth(32), mpb.WithRefreshRate(200*time.Millisecond))
		m.bar = m.bars.AddBar(0,
			mpb.PrependDecorators(decor.Name(what+" "), decor.CountersKibiByte("% .1f / % .1f ")),
			mpb.AppendDecorators(decor.AverageSpeed(decor.SizeB1024(0), "% .1f"), decor.Name("  "), decor.OnComplete(decor.AverageETA(decor.ET_STYLE_GO), "")))
	}
	return m
}

func (m *meter) set(at, total int64) {
	m.at.Store(at)
	m.total.Store(total)
	if m.bar != nil {
		m.bar.SetTotal(total, false)
		m.bar.SetCurrent(at)
		return
	}
	now, next := time.Now(), m.nextLine.Load()
	if now.UnixNano() >= next && m.nextLine.CompareAndSwap(next, now.Add(meterEvery).UnixNano()) {
		fmt.Fprintln(m.out, m.line(now))
	}
}

func (m *meter) add(n int) { m.set(m.at.Add(int64(n)), m.total.Load()) }

func (m *meter) line(now time.Time) string {
	at, total := m.at.Load(), m.total.Load()
	rate := float64(at) / max(now.Sub(m.started).Seconds(), 1e-3)
	s := fmt.Sprintf("%s: %s of %s  %s/s", m.what, size(uint64(at)), size(uint64(total)), size(uint64(rate)))
	if rate > 0 && total > at {
		s += fmt.Sprintf("  %v left", (time.Duration(float64(total-at)/rate*1e9) * time.Nanosecond).Round(time.Second))
	}
	return s
}

func (m *meter) done() {
	if m.bars == nil {
		return
	}
	m.bar.Abort(false)
	m.bars.Wait()
	m.bars, m.bar = nil, nil
}
