package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
)

// config is what the flags say.
type config struct {
	rows   int            // of the tables of dim 16; dim 64 has a fifth
	rounds int            // each figure is the median of so many
	only   *regexp.Regexp // groups to run
}

// figure is one line of the result; the names are a contract.
type figure struct {
	Name   string   `json:"name"`
	Value  float64  `json:"value"`
	Unit   string   `json:"unit"`
	Bar    *float64 `json:"bar,omitempty"`
	AtMost bool     `json:"at_most,omitempty"` // the bar is an upper one
	OK     bool     `json:"ok"`
}

func (f figure) String() string {
	s := fmt.Sprintf("%-52s %10.3f %-8s", f.Name, f.Value, f.Unit)
	if f.Bar == nil {
		return s
	}
	relation, verdict := "≥", "ok"
	if f.AtMost {
		relation = "≤"
	}
	if !f.OK {
		verdict = "MISSED"
	}
	return fmt.Sprintf("%s %s %g %s", s, relation, *f.Bar, verdict)
}

// free is a figure without a bar.
func free(name string, value float64, unit string) figure {
	return figure{Name: name, Value: value, Unit: unit, OK: true}
}

func atLeast(name string, value float64, unit string, bar float64) figure {
	return figure{Name: name, Value: value, Unit: unit, Bar: &bar, OK: value >= bar}
}

func atMost(name string, value float64, unit string, bar float64) figure {
	return figure{Name: name, Value: value, Unit: unit, Bar: &bar, AtMost: true, OK: value <= bar}
}

// groups are run in this order, each with its memory to itself.
var groups = []struct {
	name string
	run  func(config, func(figure)) error
}{
	{"gather", gather},
	{"apply", apply},
	{"create", create},
	{"flood", flood},
	{"growth", growth},
	{"bytes", bytesPerRow},
	{"machine", machine},
	{"held", held},
	{"snapshot", snapshot},
	{"acked", acked},
}

func main() {
	missed, err := run(os.Args[1:], os.Stdout)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "rowstore:", err)
		os.Exit(1)
	case missed > 0:
		fmt.Fprintf(os.Stderr, "rowstore: %d figures missed their bar\n", missed)
		os.Exit(3)
	}
}

// run returns how many figures missed their bar, 0 without --check.
func run(args []string, out io.Writer) (missed int, err error) {
	fl := flag.NewFlagSet("rowstore", flag.ContinueOnError)
	c := config{}
	fl.IntVar(&c.rows, "rows", 10_000_000, "rows of the tables of dim 16; those of dim 64 have a fifth of them")
	fl.IntVar(&c.rounds, "rounds", 7, "rounds of each figure, whose median counts")
	only := fl.String("only", "", "regular expression: run only these of gather, apply, create, flood, growth, bytes, machine, held, snapshot, acked")
	asJSON := fl.Bool("json", false, "print JSON lines")
	profile := fl.String("cpu-profile", "", "write a CPU profile to this file")
	check := fl.Bool("check", false, "exit with code 3 if a figure misses its bar")
	if err := fl.Parse(args); err != nil {
		return 0, err
	}
	if c.rows < 100_000 || c.rounds < 1 {
		return 0, fmt.Errorf("--rows %d --rounds %d: want at least 100000 rows and a round", c.rows, c.rounds)
	}
	if c.only, err = regexp.Compile(*only); err != nil {
		return 0, fmt.Errorf("--only: %w", err)
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			return 0, err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return 0, err
		}
		defer pprof.StopCPUProfile()
	}
	runtime.LockOSThread() // CPU time is counted by thread
	defer runtime.UnlockOSThread()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // marking the map's pointers is not what is measured
	for _, g := range groups {
		if !c.only.MatchString(g.name) {
			continue
		}
		err := g.run(c, func(f figure) {
			if !f.OK {
				missed++
			}
			if err := show(out, f, *asJSON); err != nil {
				panic(err) // standard output is gone
			}
		})
		if err != nil {
			return missed, fmt.Errorf("%s: %w", g.name, err)
		}
		runtime.GC()
		debug.FreeOSMemory()
	}
	if !*check {
		missed = 0
	}
	return missed, nil
}

func show(out io.Writer, f figure, asJSON bool) error {
	if !asJSON {
		_, err := fmt.Fprintln(out, f)
		return err
	}
	return json.NewEncoder(out).Encode(f)
}
