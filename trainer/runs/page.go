package runs

import (
	"bytes"
	"crypto/rand"
	_ "embed" // the page
	"errors"
	"fmt"
	"html/template"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

// PageName is the name of the page in the folder of a run.
const PageName = "page.html"

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"color": func(i int) int { return i % colors },
	"dash":  func(i int) int { return i % dashes },
}).Parse(pageText))

// page is what the template shows.
type page struct {
	Title    string
	Written  string
	Command  string // the command that writes the page again
	Live     bool   // a run is running
	Runs     []pageRun
	Measures []pageRow
	Settings []pageRow // those that differ
	Charts   []chart
	Folded   bool // there are several runs: their details are closed at first
	Set      bool // a run has settings of the command line

	Width, Height, Left, Right, Top, Bottom float64 // lengths in a plot
}

type pageRun struct {
	Index                            int
	Name, Job, State, Error, Started string
	Duration, Batches, Examples, Set string
	Fingerprint, Data                string
	Several                          bool   // processes
	Stopped                          string // why it stopped early
	Processes                        []pageProcess
	Settings                         []pageSetting
	Notes                            []pageNote
}

type pageProcess struct {
	Rank              int
	State, Host, Last string
	Binary            string
	Damaged           int
}

type pageSetting struct{ Name, Value string }

type pageNote struct {
	Rank     int
	At, Text string
}

type pageRow struct {
	Name  string
	Cells []pageCell
}

type pageCell struct {
	Text string
	Best bool
}

// pageTable is a table with a column for each run.
type pageTable struct {
	Label   string
	Page    *page
	Rows    []pageRow
	Numbers bool
}

// Scores and Differences are the tables of the page.
func (p *page) Scores() pageTable { return pageTable{"Scores", p, p.Measures, true} }

func (p *page) Differences() pageTable {
	return pageTable{"Settings that differ", p, p.Settings, false}
}

// WritePage writes the page of runs: one file of HTML that loads nothing.
func WritePage(w io.Writer, all []*Run, now time.Time) error {
	p := page{
		Title: all[0].Name, Written: now.UTC().Format("2006-01-02 15:04:05 UTC"), Folded: len(all) > 1,
		Width: chartWidth, Height: chartHeight, Left: marginLeft, Right: plotRight, Top: marginTop, Bottom: plotBottom,
	}
	if len(all) > 1 {
		p.Title = humanize.Comma(int64(len(all))) + " runs"
	}
	var names []string
	var curves []drawn
	for i, r := range all {
		names = append(names, r.Name)
		p.Live, p.Set = p.Live || r.State() == Running, p.Set || r.Set() != ""
		p.Runs = append(p.Runs, describe(i, r))
		curves = append(curves, drawn{r, r.Curve(curvePoints), r.HeldCurve()})
	}
	p.Command = "rowraft-trainer runs page " + strings.Join(names, " ") + " --runs " + filepath.Dir(all[0].Dir)
	for _, m := range Measures(all) {
		row := pageRow{Name: m.Name}
		for i, v := range m.Values {
			row.Cells = append(row.Cells, pageCell{Number(v, m.Format), i == m.Best})
		}
		p.Measures = append(p.Measures, row)
	}
	if len(all) > 1 {
		for _, d := range Compare(all) {
			row := pageRow{Name: d.Name}
			for _, v := range d.Values {
				row.Cells = append(row.Cells, pageCell{Text: v})
			}
			p.Settings = append(p.Settings, row)
		}
	}
	p.Charts = draw(curves)
	var text bytes.Buffer
	if err := pageTemplate.Execute(&text, &p); err != nil {
		return err
	}
	_, err := w.Write(text.Bytes())
	return err
}

// describe returns what the page says about a run.
func describe(i int, r *Run) pageRun {
	head := r.Head()
	batches, examples := r.Totals()
	d := pageRun{
		Index: i, Name: r.Name, Job: head.Job, State: string(r.State()), Error: r.Error(),
		Started:  head.Started.UTC().Format("2006-01-02 15:04:05 UTC"),
		Duration: r.Duration().Round(time.Second).String(), Batches: humanize.Comma(batches),
		Examples: humanize.Comma(examples), Set: r.Set(), Fingerprint: head.Fingerprint,
	}
	if result := r.Result(); result != nil {
		d.Data, d.Stopped = result.Data, result.StopReason
	}
	d.Several = len(r.Processes) > 1
	for _, p := range r.Processes {
		d.Processes = append(d.Processes, pageProcess{Rank: p.Head.Rank, State: string(p.State), Host: p.Head.Host,
			Last: p.last().UTC().Format(time.DateTime), Binary: p.Head.Binary, Damaged: p.Damaged})
		for _, n := range p.Notes {
			at := duration(float64(n.Seconds)).Round(time.Second).String()
			d.Notes = append(d.Notes, pageNote{p.Head.Rank, at, n.Text})
		}
	}
	flat := Flatten(head.Settings)
	for _, name := range slices.Sorted(maps.Keys(flat)) {
		d.Settings = append(d.Settings, pageSetting{name, flat[name]})
	}
	return d
}

// Number formats a value; a dash if there is none.
func Number(v float64, format string) string {
	if !finite(v) {
		return "–"
	}
	if format == "%.0f" {
		return humanize.Comma(int64(min(max(v, -1e15), 1e15)))
	}
	return fmt.Sprintf(format, v)
}

// SavePage writes the page of runs to a file, which it replaces when the page is complete.
func SavePage(path string, all []*Run) error {
	var text bytes.Buffer
	if err := WritePage(&text, all, time.Now()); err != nil {
		return err
	}
	part := path + "." + rand.Text() + ".tmp" // other trainers may write the page, too
	err := os.WriteFile(part, text.Bytes(), 0o644)
	if err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		return errors.Join(err, removeIfThere(part))
	}
	return nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
