package runs

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Size of a chart and of the margins around its plot, in units of the drawing.
const (
	chartWidth, chartHeight         = 420.0, 230.0
	marginLeft, marginRight         = 50.0, 10.0
	marginTop, marginBottom         = 10.0, 34.0
	plotRight, plotBottom           = chartWidth - marginRight, chartHeight - marginBottom
	xTicks, yTicks                  = 5, 5
	colors, dashes                  = 8, 4
	clampAbove, clampShare  float64 = 3, 0.98
)

// chartKind is what a chart shows of runs.
type chartKind struct {
	title, unit string
	zero        bool // the vertical axis begins at 0
	marked      bool // few points, which are marked
	sample      func(*Sample) float64
	held        func(*HeldSample) float64 // instead of sample
}

// chartKinds are the charts of a page. A chart without a value of any run is left out.
var chartKinds = []chartKind{
	{title: "Training loss", unit: "of recent batches", sample: func(s *Sample) float64 { return s.Loss }},
	{title: "Training AUC", unit: "before the update",
		sample: func(s *Sample) float64 { return s.AUC }},
	{title: "Training accuracy", unit: "before the update",
		sample: func(s *Sample) float64 { return s.Accuracy }},
	{title: "Held-out AUC", marked: true, held: func(h *HeldSample) float64 { return h.AUC }},
	{title: "Held-out log loss", unit: "nats", marked: true, held: func(h *HeldSample) float64 { return h.LogLoss }},
	{title: "Held-out accuracy", marked: true, held: func(h *HeldSample) float64 { return h.Accuracy }},
	{title: "Held-out RMSE", marked: true, held: func(h *HeldSample) float64 { return h.RMSE }},
	{title: "Held-out calibration", unit: "mean prediction / mean label; 1 is right", marked: true,
		held: func(h *HeldSample) float64 { return h.Calibration }},
	{title: "Examples per second", unit: "of all trainers", zero: true,
		sample: func(s *Sample) float64 { return s.ExamplesPerSecond }},
	{title: "Staleness", unit: "pushes that the weights missed, mean", zero: true,
		sample: func(s *Sample) float64 { return s.Stale }},
	{title: "Waiting", unit: "% of the time, for rows and data", zero: true,
		sample: func(s *Sample) float64 { return 100 * s.Waiting }},
}

// chart is a drawn chart.
type chart struct {
	Title, Unit string
	Plots       []plot // by the horizontal axis: batches, then time
}

// plot is a chart over one horizontal axis.
type plot struct {
	Axis           string // batches or time
	Desc           string // for people who do not see it
	XTicks, YTicks []tick
	Curves         []curve
	X0, X1, Y0, Y1 float64 // values at the edges
}

// tick is a mark of an axis. At is its place, in units of the drawing.
type tick struct {
	At    float64
	Label string
}

// curve is the curve of a run.
type curve struct {
	Index  int
	Name   string
	Lines  []string // polylines: a value that is missing ends one
	Marks  []mark
	values [][2]float64
}

type mark struct{ X, Y string }

// drawn is a run with its curves.
type drawn struct {
	run     *Run
	samples []Sample
	held    []HeldSample
}

// draw returns the charts of runs.
func draw(all []drawn) (out []chart) {
	for _, k := range chartKinds {
		c := chart{Title: k.title, Unit: k.unit}
		for _, axis := range []string{"batches", "time"} {
			if p, ok := k.plot(all, axis); ok {
				c.Plots = append(c.Plots, p)
			}
		}
		if len(c.Plots) > 0 {
			out = append(out, c)
		}
	}
	return out
}

// plot draws a chart over an axis. It returns false if no run has a value.
func (k *chartKind) plot(all []drawn, axis string) (plot, bool) {
	p := plot{Axis: axis}
	var ys []float64
	lastX := 0.0 // all charts have one horizontal axis
	var about []string
	for i, d := range all {
		c := curve{Index: i, Name: d.run.Name}
		add := func(batches, seconds, y float64) {
			x := place(axis, batches, seconds)
			lastX = max(lastX, x)
			if !finite(y) {
				y = math.NaN()
			} else {
				ys = append(ys, y)
			}
			c.values = append(c.values, [2]float64{x, y})
		}
		for j := range d.samples {
			lastX = max(lastX, place(axis, d.samples[j].Batches, d.samples[j].Seconds))
		}
		if k.held != nil {
			for j := range d.held {
				add(d.held[j].Batches, d.held[j].Seconds, k.held(&d.held[j]))
			}
		} else {
			for j := range d.samples {
				add(d.samples[j].Batches, d.samples[j].Seconds, k.sample(&d.samples[j]))
			}
		}
		if text := c.describe(); text != "" {
			about = append(about, text)
		}
		p.Curves = append(p.Curves, c)
	}
	if len(ys) == 0 {
		return p, false
	}
	p.Desc = k.title + ": " + strings.Join(about, "; ") + "."
	p.X1 = max(lastX, 1e-3)
	p.Y0, p.Y1 = verticalRange(ys, k.zero)
	for i := range p.Curves {
		p.Curves[i].draw(&p, k.marked)
	}
	for _, v := range ticks(p.X0, p.X1, xTicks) {
		label := short(v)
		if axis == "time" {
			label = clock(v, p.X1)
		}
		p.XTicks = append(p.XTicks, tick{p.x(v), label})
	}
	for _, v := range ticks(p.Y0, p.Y1, yTicks) {
		p.YTicks = append(p.YTicks, tick{p.y(v), short(v)})
	}
	return p, true
}

// place returns the place on an axis.
func place(axis string, batches, seconds float64) float64 {
	if axis == "time" {
		return seconds
	}
	return batches
}

// verticalRange returns the values at the edges of a chart. A few values far above the others, as of a loss that
// explodes, are drawn at its upper edge.
func verticalRange(ys []float64, zero bool) (lo, hi float64) {
	slices.Sort(ys)
	lo, hi = ys[0], ys[len(ys)-1]
	if most := ys[int(clampShare*float64(len(ys)-1))]; hi > most+clampAbove*(most-lo) && most > lo {
		hi = most + (most-lo)/4
	}
	if zero {
		lo = min(lo, 0)
	}
	if zero && hi == 0 {
		return 0, 1
	}
	if hi == lo {
		pad := max(math.Abs(hi)/10, 1e-3)
		return lo - pad, hi + pad
	}
	pad := (hi - lo) / 20
	if zero && lo == 0 {
		return 0, hi + pad
	}
	return lo - pad, hi + pad
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

func (p *plot) x(v float64) float64 {
	return marginLeft + (v-p.X0)/(p.X1-p.X0)*(plotRight-marginLeft)
}

func (p *plot) y(v float64) float64 {
	share := min(max((v-p.Y0)/(p.Y1-p.Y0), 0), 1)
	return plotBottom - share*(plotBottom-marginTop)
}

// draw computes the lines of c in p.
func (c *curve) draw(p *plot, marked bool) {
	var points []string
	end := func() {
		if len(points) > 1 {
			c.Lines = append(c.Lines, strings.Join(points, " "))
		} else if len(points) == 1 && !marked { // a line of one point cannot be seen
			x, y, _ := strings.Cut(points[0], ",")
			c.Marks = append(c.Marks, mark{x, y})
		}
		points = nil
	}
	for _, v := range c.values {
		if math.IsNaN(v[1]) {
			end()
			continue
		}
		x, y := decimal(p.x(v[0])), decimal(p.y(v[1]))
		points = append(points, x+","+y)
		if marked {
			c.Marks = append(c.Marks, mark{x, y})
		}
	}
	end()
}

func decimal(v float64) string { return strconv.FormatFloat(math.Round(100*v)/100, 'f', -1, 64) }

// describe returns the course of a curve in words.
func (c *curve) describe() string {
	first, last, low, high := math.NaN(), math.NaN(), math.Inf(1), math.Inf(-1)
	for _, v := range c.values {
		if y := v[1]; !math.IsNaN(y) {
			if math.IsNaN(first) {
				first = y
			}
			last, low, high = y, min(low, y), max(high, y)
		}
	}
	if math.IsNaN(first) {
		return ""
	}
	return fmt.Sprintf("run %s from %s to %s, lowest %s, highest %s", c.Name, short(first), short(last), short(low),
		short(high))
}

// ticks returns about n round numbers between lo and hi.
func ticks(lo, hi float64, n int) (out []float64) {
	step := math.Pow(10, math.Floor(math.Log10((hi-lo)/float64(n))))
	for _, m := range []float64{1, 2, 5, 10} {
		if (hi-lo)/(m*step) <= float64(n) {
			step *= m
			break
		}
	}
	if !finite(step) || !(step > 0) {
		return nil
	}
	for i := math.Ceil(lo/step - 1e-9); i*step <= hi+1e-9*step && len(out) < 4*n; i++ {
		out = append(out, i*step)
	}
	return out
}

// short formats a number with four digits at most.
func short(v float64) string {
	if !finite(v) {
		return "–"
	}
	for _, unit := range []struct {
		size   float64
		suffix string
	}{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e4, "k"}} {
		if a := math.Abs(v); a >= unit.size {
			size := max(unit.size, 1e3)
			if unit.suffix == "k" {
				size = 1e3
			}
			return strconv.FormatFloat(v/size, 'g', 4, 64) + unit.suffix
		}
	}
	if v = math.Round(1e6*v) / 1e6; v == 0 {
		v = 0 // no minus
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

// clock formats seconds in a unit that fits the greatest of an axis.
func clock(seconds, most float64) string {
	switch {
	case most >= 3*86400:
		return short(seconds/86400) + " d"
	case most >= 3*3600:
		return short(seconds/3600) + " h"
	case most >= 180:
		return short(seconds/60) + " min"
	}
	return short(seconds) + " s"
}
