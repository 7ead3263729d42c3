package main

import (
	"fmt"
	"io"
	"runtime"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/trainer/accel"
	"github.com/rowraft/rowraft/trainer/models"
)

// probeReport is what `probe -o json` prints.
type probeReport struct {
	accel.Report
	GOOS    string `json:"os"`
	GOARCH  string `json:"arch"`
	CPUs    int    `json:"cpus"`
	StepRan bool   `json:"step_ran"` // a training step of a small model ran on the backend
	Error   string `json:"error,omitempty"`
}

func newProbe() *cobra.Command {
	var choice, output string
	cmd := &cobra.Command{
		Use:   "probe",
		Short: "Say what the model would run on: CPU or GPU, plugin, libraries",
		Long: `Probe opens the compute backend as train does, runs one step of a small model on it, and prints what it
found. Without a usable GPU the reason is printed and the CPU is used, as in training; that is no error.`,
		Example: "  rowraft-trainer probe\n  ROWRAFT_PJRT_PLUGIN=/path/xla_cuda_plugin.so rowraft-trainer probe " +
			"--accelerator cuda -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return cli.Usagef("output %q: want table or json", output)
			}
			r, err := probe(choice)
			if err != nil {
				return err
			}
			if output == "json" {
				return cli.WriteJSON("-", r)
			}
			printProbe(cmd.OutOrStdout(), r)
			return nil
		},
	}
	cmd.Flags().StringVar(&choice, "accelerator", accel.Auto, "what to look for: auto, go (the CPU) or cuda")
	cmd.Flags().StringVarP(&output, "output", "o", "table", "how to print: table or json")
	return cmd
}

func probe(choice string) (*probeReport, error) {
	backend, report, err := accel.Open(choice)
	if err != nil {
		return nil, err
	}
	r := &probeReport{Report: *report, GOOS: runtime.GOOS, GOARCH: runtime.GOARCH, CPUs: runtime.NumCPU()}
	if err := models.SelfTest(backend); err != nil {
		r.Error = err.Error()
	} else {
		r.StepRan = true
	}
	return r, nil
}

func printProbe(w io.Writer, r *probeReport) {
	t := cli.NewBox(w)
	row := func(name string, value any) { t.AppendRow(table.Row{name, value}) }
	row("backend", r.Backend)
	row("platform", r.Platform)
	row("devices", r.Devices)
	row("machine", fmt.Sprintf("%s/%s, %d CPUs", r.GOOS, r.GOARCH, r.CPUs))
	row("XLA in this binary", yesNo(r.XLA))
	row("plugin", orNone(r.Plugin))
	if r.PluginVersion != "" {
		row("plugin's PJRT API", r.PluginVersion)
	}
	if r.CUDADataDir != "" {
		row("CUDA data", r.CUDADataDir)
	}
	for _, lib := range r.Libraries {
		state := "loaded"
		if lib.Error != "" {
			state = lib.Error
		}
		row(lib.Path, state)
	}
	if r.Reason != "" {
		row("why not the GPU", r.Reason)
	}
	step := "ran"
	if r.Error != "" {
		step = r.Error
	}
	row("a training step", step)
	t.Render()
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
