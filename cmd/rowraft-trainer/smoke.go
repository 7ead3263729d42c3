package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/trainer/accel"
	"github.com/rowraft/rowraft/trainer/smoke"
)

// smokeReport is what `smoke -o json` prints.
type smokeReport struct {
	deviceReport
	smoke.Report
}

type deviceReport = accel.Report

func newSmoke() *cobra.Command {
	var device, output string
	var batches []int
	var each time.Duration
	cmd := &cobra.Command{
		Use:   "smoke",
		Short: "Compare a device with the CPU, and time a training step on it",
		Long: `Smoke computes a step of each model that has a graph of the compute library on a device and on the CPU, and
compares losses and gradients. Then it times steps of a DLRM with 13 dense numbers and 26 embeddings of 16. On the CPU it
compares the library's own backend with the layers that train there. It exits with code 3 if a model differs.`,
		Example: "  rowraft-trainer smoke --device cuda\n  rowraft-trainer smoke --device cpu --batches 2048 -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != cli.FormatTable && output != cli.FormatJSON {
				return cli.Usagef("output %q: want table or json", output)
			}
			for _, n := range batches {
				if n < 1 || n > 1<<16 {
					return cli.Usagef("--batches %d: want 1 to %d", n, 1<<16)
				}
			}
			b, found, err := accel.Open(device)
			if err != nil {
				return err
			}
			r, err := smoke.Run(b, batches, each)
			if err != nil {
				return fmt.Errorf("%s: %w", found.Line(), err)
			}
			err = cli.Show(cmd.OutOrStdout(), output, smokeReport{*found, *r}, func(w io.Writer, _ bool) error {
				printSmoke(w, found, r)
				return nil
			})
			if err == nil && !r.OK() {
				err = cli.Verdict(errors.New("the device computes other numbers than the CPU"))
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&device, "device", accel.Auto, "device to check: auto, cpu or cuda")
	f.IntSliceVar(&batches, "batches", []int{2048, 16384}, "examples of the steps that are timed")
	f.DurationVar(&each, "each", 3*time.Second, "how long steps of each size are timed")
	f.StringVarP(&output, "output", "o", cli.FormatTable, "how to print: table or json")
	return cmd
}

func printSmoke(w io.Writer, found *accel.Report, r *smoke.Report) {
	fmt.Fprintln(w, found.Line())
	t := cli.NewBox(w)
	t.AppendHeader(table.Row{"model", "against", "loss", "on the CPU", "gradients differ by", "same"})
	for _, p := range r.Parity {
		t.AppendRow(table.Row{p.Model, p.Against, fmt.Sprintf("%.7f", p.Loss), fmt.Sprintf("%.7f", p.CPULoss),
			fmt.Sprintf("%.1e", p.Gradients), yesNo(p.OK)})
	}
	t.Render()
	t = cli.NewBox(w)
	t.AppendHeader(table.Row{"batch", "rows on the", "ms per step", "examples/s", "first step, ms"})
	for _, s := range r.Steps {
		t.AppendRow(table.Row{s.Batch, s.Rows, fmt.Sprintf("%.2f", s.Millis), cli.Count(uint64(s.ExamplesPerSecond())),
			fmt.Sprintf("%.0f", s.FirstMillis)})
	}
	t.Render()
}
