package main

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
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
	StepRan bool   `json:"step_ran"` // a training step of a small model ran on the device
	Error   string `json:"error,omitempty"`
}

func newProbe() *cobra.Command {
	var device, output string
	cmd := &cobra.Command{
		Use:   "probe",
		Short: "Print which device would compute the model: CPU or GPU, plugin, libraries",
		Long: `Probe opens a device as train does, runs one step of a small model on it, and prints what it found. With auto, a
machine without a usable GPU is no error: the reason is printed, and the step runs on the CPU, as in training. It exits
with code 1 if the device cannot be used, and 3 if the step fails.`,
		Example: "  rowraft-trainer probe\n  ROWRAFT_PJRT_PLUGIN=/path/xla_cuda_plugin.so rowraft-trainer probe " +
			"--device cuda -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != cli.FormatTable && output != cli.FormatJSON {
				return cli.Usagef("output %q: want table or json", output)
			}
			r, err := probe(device)
			if rowraft.CodeOf(err) == rowraft.CodeInvalidArgument {
				return err
			}
			shown := cli.Show(cmd.OutOrStdout(), output, r, func(w io.Writer, _ bool) error {
				printProbe(w, r)
				return nil
			})
			return errors.Join(err, shown)
		},
	}
	cmd.Flags().StringVar(&device, "device", accel.Auto, "device to look for: auto, cpu or cuda")
	cmd.Flags().StringVarP(&output, "output", "o", cli.FormatTable, "how to print: table or json")
	return cmd
}

// probe always returns a report. Errors: those of accel.Open; a verdict if the step fails.
func probe(device string) (*probeReport, error) {
	backend, report, err := accel.Open(device)
	r := &probeReport{Report: *report, GOOS: runtime.GOOS, GOARCH: runtime.GOARCH, CPUs: runtime.NumCPU()}
	if err != nil {
		return r, err
	}
	if err := models.SelfTest(backend); err != nil {
		r.Error = strings.Join(strings.Fields(err.Error()), " ")
		return r, cli.Verdict(fmt.Errorf("a training step: %s", r.Error))
	}
	r.StepRan = true
	return r, nil
}

func printProbe(w io.Writer, r *probeReport) {
	t := cli.NewBox(w)
	row := func(name string, value any) { t.AppendRow(table.Row{name, value}) }
	row("device", orNone(r.Device))
	row("backend", orNone(r.Backend))
	row("devices", orNone(strings.Join(r.Devices, ", ")))
	row("machine", fmt.Sprintf("%s/%s, %d CPUs", r.GOOS, r.GOARCH, r.CPUs))
	row("XLA in this binary", yesNo(r.XLA))
	row("plugin", orNone(r.Plugin))
	if r.PluginVersion != "" {
		row("plugin's PJRT API", r.PluginVersion)
		row("arguments widened", yesNo(r.Widened))
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
		row("why not CUDA", r.Reason)
	}
	switch {
	case r.StepRan:
		row("a training step", "ran")
	case r.Error != "":
		row("a training step", r.Error)
	}
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
