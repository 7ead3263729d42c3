// Package figures has a measured figure and its bar, and prints figures as they are measured.
package figures

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/rowraft/rowraft/internal/cli"
)

// Figure is a measured figure; the field names of its JSON and the names of the figures are a contract.
type Figure struct {
	Name   string   `json:"name"`
	Value  float64  `json:"value"`
	Unit   string   `json:"unit"`
	Bar    *float64 `json:"bar,omitempty"`
	AtMost bool     `json:"at_most,omitempty"` // the bar is an upper one
	Exact  bool     `json:"exact,omitempty"`   // the figure must equal the bar
	OK     bool     `json:"ok"`
}

// Free is a figure without a bar.
func Free(name string, value float64, unit string) Figure {
	return Figure{Name: name, Value: value, Unit: unit, OK: true}
}

// AtLeast is a figure with a lower bar.
func AtLeast(name string, value float64, unit string, bar float64) Figure {
	return Figure{Name: name, Value: value, Unit: unit, Bar: &bar, OK: value >= bar}
}

// AtMost is a figure with an upper bar.
func AtMost(name string, value float64, unit string, bar float64) Figure {
	return Figure{Name: name, Value: value, Unit: unit, Bar: &bar, AtMost: true, OK: value <= bar}
}

// Exactly is a figure that must equal its bar.
func Exactly(name string, value float64, unit string, bar float64) Figure {
	return Figure{Name: name, Value: value, Unit: unit, Bar: &bar, Exact: true, OK: value == bar}
}

func (f Figure) String() string {
	s := fmt.Sprintf("%-52s %11.4f %-8s", f.Name, f.Value, f.Unit)
	if f.Bar == nil {
		return s
	}
	relation, verdict := "≥", "ok"
	switch {
	case f.AtMost:
		relation = "≤"
	case f.Exact:
		relation = "="
	}
	if !f.OK {
		verdict = "MISSED"
	}
	return fmt.Sprintf("%s %s %g %s", s, relation, *f.Bar, verdict)
}

// Printer prints figures, one a line, in an output format of package cli.
type Printer struct {
	w      io.Writer
	format string
	failed error // to print
	missed []string
}

// NewPrinter returns a Printer that writes to w.
func NewPrinter(w io.Writer, format string) *Printer { return &Printer{w: w, format: format} }

// Add prints f.
func (p *Printer) Add(f Figure) {
	if !f.OK {
		p.missed = append(p.missed, f.Name)
	}
	var err error
	switch p.format {
	case cli.FormatJSON:
		err = json.NewEncoder(p.w).Encode(f)
	case cli.FormatYAML:
		err = cli.WriteYAML(p.w, []Figure{f}) // the documents join to one list
	default:
		_, err = fmt.Fprintln(p.w, f)
	}
	p.failed = errors.Join(p.failed, err)
}

// Err returns the error of printing.
func (p *Printer) Err() error { return p.failed }

// Verdict returns an error that names the figures that missed their bar, nil if none did.
func (p *Printer) Verdict() error {
	if p.failed != nil || len(p.missed) == 0 {
		return p.failed
	}
	return cli.Verdict(fmt.Errorf("missed: %s", strings.Join(p.missed, ", ")))
}
