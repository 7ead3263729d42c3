package demo

import (
	"fmt"
	"time"

	"github.com/rowraft/rowraft/internal/localcluster"
)

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
