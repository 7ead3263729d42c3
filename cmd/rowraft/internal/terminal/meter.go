package terminal

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/rowraft/rowraft/internal/cli"
)

// Intervals of progress output without a terminal, as text and as JSON.
const (
	meterEvery = 5 * time.Second
	eventEvery = time.Second
)

// Meter shows the progress of a long command: a bar with rate and remaining time on a terminal, otherwise a line at
// intervals, and with -o json one event per line. Any goroutine may call set. Only one may call phase and done; done
// ends the meter and may be called twice.
type Meter struct {
	out    io.Writer
	events bool
	every  time.Duration
	total  atomic.Int64
	at     atomic.Int64
	what   string
	noun   string // of what is counted, if it is not bytes

	terminal bool // show a bar
	shows    sync.Once
	bars     *mpb.Progress // nil off a terminal, and before there is something to count
	bar      *mpb.Bar

	started  time.Time
	nextLine atomic.Int64 // UnixNano
}

func NewMeter(out io.Writer, what string, events bool) *Meter {
	return NewCounter(out, what, "", events)
}

// NewCounter counts things that are not bytes.
func NewCounter(out io.Writer, what, noun string, events bool) *Meter {
	m := &Meter{what: what, noun: noun, out: out, events: events, every: meterEvery, started: time.Now()}
	if events {
		m.every = eventEvery
	}
	m.nextLine.Store(m.started.Add(m.every).UnixNano())
	m.terminal = !events && cli.IsTerminal(out)
	return m
}

// show adds the bar to the terminal.
func (m *Meter) show() {
	m.bars = mpb.New(mpb.WithOutput(m.out), mpb.WithWidth(32), mpb.WithRefreshRate(200*time.Millisecond),
		mpb.WithAutoRefresh())
	counted := func(s decor.Statistics) string {
		if m.noun != "" {
			return fmt.Sprintf("%d / %d %s ", s.Current, s.Total, m.noun)
		}
		return fmt.Sprintf("%s / %s ", cli.Size(uint64(s.Current)), cli.Size(uint64(s.Total)))
	}
	speed := func(s decor.Statistics) string {
		rate := float64(s.Current) / max(time.Since(m.started).Seconds(), 1e-3)
		if m.noun != "" {
			return fmt.Sprintf("%.0f/s", rate)
		}
		return cli.Size(uint64(rate)) + "/s"
	}
	m.bar = m.bars.AddBar(0, mpb.PrependDecorators(decor.Name(m.what+" "), decor.Any(counted)),
		mpb.AppendDecorators(decor.Any(speed), decor.Name("  "),
			decor.OnCompleteOrOnAbort(decor.AverageETA(decor.ET_STYLE_GO), "")))
}

// Set reports that at of total is done. The bar appears with the first total that is not zero.
func (m *Meter) Set(at, total int64) {
	m.at.Store(at)
	m.total.Store(total)
	if m.terminal {
		if total > 0 {
			m.shows.Do(m.show)
			m.bar.SetTotal(total, false)
			m.bar.SetCurrent(at)
		}
		return
	}
	now, next := time.Now(), m.nextLine.Load()
	if now.UnixNano() >= next && m.nextLine.CompareAndSwap(next, now.Add(m.every).UnixNano()) {
		m.say(m.what, now)
	}
}

func (m *Meter) Add(n int) { m.Set(m.at.Add(int64(n)), m.total.Load()) }

// Phase reports in JSON output that another phase has begun, which has no bytes to count.
func (m *Meter) Phase(what string) {
	if m.events {
		m.say(what, time.Now())
	}
}

// ProgressEvent is one progress event with -o json, a line on standard error.
type ProgressEvent struct {
	Progress struct {
		Phase      string   `json:"phase"`
		Bytes      int64    `json:"bytes"`
		BytesTotal int64    `json:"bytes_total"`
		Rate       float64  `json:"bytes_per_second"`
		Left       *float64 `json:"seconds_left"`   // null: unknown
		Unit       string   `json:"unit,omitempty"` // of what is counted instead of bytes, in the same fields
	} `json:"progress"`
}

func (m *Meter) say(what string, now time.Time) {
	at, total := m.at.Load(), m.total.Load()
	rate := float64(at) / max(now.Sub(m.started).Seconds(), 1e-3)
	left, known := 0.0, rate > 0 && total >= at
	if known {
		left = float64(total-at) / rate
	}
	if m.events {
		var e ProgressEvent
		e.Progress.Phase, e.Progress.Bytes, e.Progress.BytesTotal, e.Progress.Rate = what, at, total, rate
		e.Progress.Unit = m.noun
		if known {
			e.Progress.Left = &left
		}
		if raw, err := json.Marshal(e); err == nil {
			fmt.Fprintln(m.out, string(raw))
		}
		return
	}
	line := fmt.Sprintf("%s: %s of %s  %s/s", what, cli.Size(uint64(at)), cli.Size(uint64(total)), cli.Size(uint64(rate)))
	if m.noun != "" {
		line = fmt.Sprintf("%s: %s of %s %s", what, cli.Count(uint64(at)), cli.Count(uint64(total)), m.noun)
	}
	if known && left > 0 {
		line += fmt.Sprintf("  %v left", time.Duration(left*1e9).Round(time.Second))
	}
	fmt.Fprintln(m.out, line)
}

func (m *Meter) Done() {
	if m.bars == nil {
		return
	}
	m.bar.Abort(false)
	m.bars.Wait()
	m.bars, m.terminal = nil, false
}
