package main

import (
	"fmt"
	"io"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/trainer/report"
)

// calibration describes a calibration in one line.
func calibration(c *report.Calibration) string {
	s := fmt.Sprintf("%.3f, mean prediction / mean label", c.Ratio)
	if known(c.Error) {
		s += fmt.Sprintf("; error %.4f", c.Error)
	}
	return s
}

// printCalibration prints the bins of a calibration.
func printCalibration(w io.Writer, c *report.Calibration) {
	t := cli.NewBox(w)
	t.AppendHeader(table.Row{"examples by prediction", "mean prediction", "mean label", "ratio"})
	for _, b := range c.Bins {
		ratio := "-"
		if b.Label > 0 {
			ratio = fmt.Sprintf("%.3f", b.Prediction/b.Label)
		}
		t.AppendRow(table.Row{b.Examples, fmt.Sprintf("%.4f", b.Prediction), fmt.Sprintf("%.4f", b.Label), ratio})
	}
	t.Render()
}

// bestRows adds the best score of the job and its checkpoint to the rows of a result.
func bestRows(row func(name, format string, args ...any), r *report.Result) {
	add := func(name string, b *report.BestScore) {
		if b == nil {
			return
		}
		row(name, "%s %.4f after step %d", report.MetricName(b.Metric), b.Value, b.Step)
		if b.Checkpoint != "" {
			row("its checkpoint", "%s", b.Checkpoint)
			row("to restore it", "%s", b.Restore)
		}
	}
	add("best score", r.BestScore)
	add("best saved score", r.SavedScore)
}
