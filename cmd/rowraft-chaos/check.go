package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/e2e/check"
	"github.com/rowraft/rowraft/e2e/cluster"
	"github.com/rowraft/rowraft/e2e/history"
	"github.com/rowraft/rowraft/e2e/load"
)

func newCheckCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "check DIR",
		Short: "Check what an earlier run has recorded again",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			raw, err := os.ReadFile(filepath.Join(args[0], configFile))
			if err != nil {
				return usagef("not the directory of a run: %w", err)
			}
			var cfg config
			if err := json.Unmarshal(raw, &cfg); err != nil {
				return fmt.Errorf("%s: %w", configFile, err)
			}
			ops, seen, err := readRun(args[0])
			if err != nil {
				return err
			}
			_, verdicts := judge(ops, seen, &cfg)
			wrong := false
			for _, v := range verdicts {
				fmt.Fprintln(cmd.OutOrStdout(), v)
				for _, p := range v.Wrong {
					wrong = true
					fmt.Fprintf(cmd.OutOrStdout(), "WRONG: %s\n", p)
				}
			}
			if wrong {
				return errVerdict
			}
			return nil
		},
	}
}

// readRun reads what the run in dir has recorded.
func readRun(dir string) ([]history.Op, cluster.Sights, error) {
	var seen cluster.Sights
	ops, err := history.Read(filepath.Join(dir, historyFile))
	if err != nil {
		return nil, seen, err
	}
	raw, err := os.ReadFile(filepath.Join(dir, seenFile))
	if errors.Is(err, fs.ErrNotExist) {
		return ops, seen, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &seen)
	}
	if err != nil {
		return nil, seen, fmt.Errorf("%s: %w", seenFile, err)
	}
	return ops, seen, nil
}

// verdict is what one checker says.
type verdict struct {
	Checker string   `json:"checker"`
	Looked  string   `json:"looked_at"`
	Wrong   []string `json:"violations"`
}

func (v verdict) String() string {
	said := "ok"
	if len(v.Wrong) > 0 {
		said = fmt.Sprintf("%d VIOLATIONS", len(v.Wrong))
	}
	return fmt.Sprintf("%-10s %-14s %s", v.Checker, said, v.Looked)
}

func (v *verdict) add(found []check.Violation) {
	for _, f := range found {
		v.Wrong = append(v.Wrong, f.String())
	}
}

// lacks makes a verdict of something to look at that is not there: nothing was
// checked, so nothing was shown.
func (v *verdict) lacks(is bool, what string) {
	if is {
		v.Wrong = append(v.Wrong, "nothing was checked: "+what)
	}
}

// Of the search as a second opinion: small windows, which it decides fast.
const (
	porcupineWindow  = 250
	porcupineTimeout = 20 * time.Second
)

// judge asks every checker about a run. The guests of the load push as well.
func judge(ops []history.Op, seen cluster.Sights, cfg *config) (check.Tally, []verdict) {
	clients := cfg.Clients + load.Guests
	t := check.Count(ops)

	exact := verdict{Checker: "exact", Looked: fmt.Sprintf("every read against every push: %v", t)}
	exact.add(check.Vec(ops, clients))
	exact.lacks(t.FinalReads == 0 || t.UnreadRows > 0, fmt.Sprintf("%d rows were not read in the end", t.UnreadRows))
	if t.Lost > 0 || t.Doubled > 0 {
		exact.Wrong = append(exact.Wrong, fmt.Sprintf("%d additions lost, %d doubled", t.Lost, t.Doubled))
	}

	opinion := check.Porcupine(ops, clients, check.PorcupineOptions{Window: porcupineWindow, Timeout: porcupineTimeout + cfg.For/20})
	porcupine := verdict{Checker: "porcupine", Looked: opinion.String()}
	porcupine.add(opinion.Illegal)
	porcupine.lacks(opinion.OK+len(opinion.Illegal) == 0, "no window was decided")

	replies := check.Replies(ops)
	mono := verdict{Checker: "indices", Looked: fmt.Sprintf("applied indices of %d replies run forwards", len(replies))}
	mono.add(check.Mono(replies))

	leaders := verdict{Checker: "leaders", Looked: fmt.Sprintf("%d sights of leaders, by their status and their logs: one for each of %d terms", len(seen.Leads), terms(seen.Leads))}
	leaders.add(check.Leaders(seen.Leads))
	leaders.lacks(len(seen.Leads) == 0, "no leader was seen")

	shared := check.Shared(seen.Digests)
	digests := verdict{Checker: "digests", Looked: fmt.Sprintf("%d digests, %d times of several replicas at one index", len(seen.Digests), shared)}
	digests.add(check.Digests(seen.Digests))
	digests.lacks(shared == 0, "no two replicas were seen at one index")
	return t, []verdict{exact, porcupine, mono, leaders, digests}
}

func terms(leads []check.Leading) int {
	seen := make(map[cluster.Lead]bool)
	for _, l := range leads {
		seen[cluster.Lead{Shard: rowraft.ShardID(l.Shard), Term: rowraft.Term(l.Term)}] = true
	}
	return len(seen)
}

// checkRecords checks what the run has recorded.
func (r *chaos) checkRecords() error {
	ops, seen, err := readRun(r.cfg.dir)
	if err != nil {
		return err
	}
	r.res.Checked = len(ops)
	r.res.Terms = terms(seen.Leads)
	var tally check.Tally
	tally, r.res.Verdicts = judge(ops, seen, r.cfg)
	r.res.Lost, r.res.Doubled = max(r.res.Lost, tally.Lost), max(r.res.Doubled, tally.Doubled)
	for _, v := range r.res.Verdicts {
		for _, p := range v.Wrong {
			r.wrong("%s: %s", v.Checker, p)
		}
	}
	return nil
}
