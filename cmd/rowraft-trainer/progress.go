package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/trainer/report"
)

// progress shows the events of a run. Calls of observe do not overlap.
type progress struct {
	observe report.Observer
	close   func() // may be called twice
}

// newProgress returns the progress of a run.
func (o *options) newProgress() (*progress, error) {
	if o.started != nil {
		return o.started(), nil
	}
	return newProgress(o.progress, o.progressFile)
}

func newProgress(kind, file string) (*progress, error) {
	out, closeFile, terminal := io.Writer(os.Stderr), func() {}, cli.IsTerminal(os.Stderr)
	if file != "" {
		f, err := openProgressFile(file, progressFileBytes)
		if err != nil {
			return nil, cli.Usagef("--progress-file: %w", err)
		}
		out, closeFile, terminal = f, f.Close, cli.IsTerminal(f.file)
	}
	var p *progress
	switch kind {
	case "auto":
		if terminal {
			p = barProgress(out)
		} else {
			p = lineProgress(out)
		}
	case "plain":
		p = lineProgress(out)
	case "steps":
		p = stepProgress(out)
	case "json":
		enc := json.NewEncoder(out)
		p = &progress{observe: func(e report.Event) { _ = enc.Encode(&e) }, close: func() {}}
	case "none":
		p = &progress{observe: func(report.Event) {}, close: func() {}}
	default:
		closeFile()
		return nil, cli.Usagef("progress %q: want auto, plain, steps, json or none", kind)
	}
	inner := p.close
	p.close = func() { inner(); closeFile() }
	return p, nil
}

// lineProgress prints a line every few seconds, and each skipped batch.
func lineProgress(out io.Writer) *progress {
	last := time.Now()
	began := last
	return &progress{close: func() {}, observe: func(e report.Event) {
		switch e.Event {
		case report.EventStart:
			last, began = e.Time, e.Time
			fmt.Fprintf(out, "training on %s\n", e.Message)
		case report.EventSkipped, report.EventNote, report.EventWindow, report.EventValidation:
			fmt.Fprintln(out, e.Message)
		case report.EventStep:
			if e.Time.Sub(last) >= cli.LineEvery {
				last = e.Time
				fmt.Fprintln(out, stepLine(e, began))
			}
		case report.EventHeld:
			if e.Time.Sub(last) >= cli.LineEvery {
				last = e.Time
				fmt.Fprintf(out, "held-out examples: %d scored\n", e.Examples)
			}
		}
	}}
}

// known reports whether n has a value: the staleness has none before the first measurement.
func known(n report.Number) bool { return n == n }

// quality returns the present accuracy or AUC of the model.
func quality(e report.Event) string {
	if known(e.Accuracy) { // NaN for models without classes
		return fmt.Sprintf("accuracy %.4f", e.Accuracy)
	}
	return fmt.Sprintf("AUC %.4f", e.AUC)
}

// stepLine describes a run that began at began. Rates and waiting are averages since then.
func stepLine(e report.Event, began time.Time) string {
	s := fmt.Sprintf("step %d", e.Step)
	if e.Steps > 0 {
		s += fmt.Sprintf("/%d", e.Steps)
	}
	s += fmt.Sprintf("  loss %.4f  %s  %.0f examples/s  %.1f steps/s", e.Loss, quality(e), e.ExamplesPerSecond,
		e.StepsPerSecond)
	if known(e.StalenessSteps) {
		s += fmt.Sprintf("  stale %.1f pushes (max %d)", e.StalenessSteps, e.StalenessMax)
	}
	s += fmt.Sprintf("  waiting %s  %d skipped", waiting(e, began), e.BatchesSkipped)
	if e.Held != nil {
		s += fmt.Sprintf("  held-out %v", e.Held)
	}
	if e.BatchesLate > 0 {
		s += fmt.Sprintf("  %d late", e.BatchesLate)
	}
	return s + fmt.Sprintf("  %d pushes acknowledged", e.PushesAcknowledged)
}

// waiting returns the share of the time in which the model had nothing to compute.
func waiting(e report.Event, began time.Time) string {
	return fmt.Sprintf("%.0f %%", 100*float64(e.WaitingSeconds)/max(e.Time.Sub(began).Seconds(), 1e-3))
}

// steps counts the steps of a bar. A worker of a job whose splits others read too has no number of its own to reach.
func steps(s decor.Statistics) string {
	if s.Total <= 0 {
		return fmt.Sprintf("step %d ", s.Current)
	}
	return fmt.Sprintf("step %d/%d ", s.Current, s.Total)
}

// barProgress draws one bar on a terminal.
func barProgress(out io.Writer) *progress {
	bars := mpb.New(mpb.WithOutput(out), mpb.WithWidth(32), mpb.WithRefreshRate(200*time.Millisecond))
	var bar *mpb.Bar
	var text atomic.Value // a string; observe stores it, and mpb's goroutine draws it
	text.Store("")
	set := func(s string) { text.Store(s) }
	get := func(decor.Statistics) string { return text.Load().(string) }
	closed := false
	var began time.Time
	return &progress{
		observe: func(e report.Event) {
			switch e.Event {
			case report.EventStart:
				began = e.Time
				bar = bars.AddBar(e.Steps, mpb.PrependDecorators(decor.Any(steps)),
					mpb.AppendDecorators(decor.Any(get), decor.OnComplete(decor.AverageETA(decor.ET_STYLE_GO), "")))
			case report.EventStep:
				s := fmt.Sprintf(" loss %.4f  %s  %.0f/s  %.1f steps/s", e.Loss, quality(e), e.ExamplesPerSecond, e.StepsPerSecond)
				if known(e.StalenessSteps) {
					s += fmt.Sprintf("  stale %.1f", e.StalenessSteps)
				}
				set(s + fmt.Sprintf("  waiting %s  %d skipped  ", waiting(e, began), e.BatchesSkipped))
				bar.SetCurrent(e.Step)
			case report.EventSkipped, report.EventNote, report.EventWindow, report.EventValidation:
				fmt.Fprintln(bars, e.Message)
			case report.EventHeld:
				set(fmt.Sprintf(" scoring the held-out examples: %d done  ", e.Examples))
			}
		},
		close: func() {
			if closed {
				return
			}
			closed = true
			if bar != nil {
				bar.Abort(false)
			}
			bars.Wait()
		},
	}
}
