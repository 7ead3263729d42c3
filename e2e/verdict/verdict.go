// Package verdict asks every checker of package check about what a run has recorded
// in its directory.
package verdict

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/e2e/check"
	"github.com/rowraft/rowraft/e2e/cluster"
	"github.com/rowraft/rowraft/e2e/history"
	"github.com/rowraft/rowraft/e2e/load"
)

// Files in the directory of a run.
const (
	HistoryFile = "history.jsonl"
	SeenFile    = "seen.json"
)

// Read reads what the run in dir has recorded.
func Read(dir string) ([]history.Op, cluster.Sights, error) {
	var seen cluster.Sights
	ops, err := history.Read(filepath.Join(dir, HistoryFile))
	if err != nil {
		return nil, seen, err
	}
	raw, err := os.ReadFile(filepath.Join(dir, SeenFile))
	if errors.Is(err, fs.ErrNotExist) {
		return ops, seen, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &seen)
	}
	if err != nil {
		return nil, seen, fmt.Errorf("%s: %w", SeenFile, err)
	}
	return ops, seen, nil
}

// Verdict is what one checker says.
type Verdict struct {
	Checker string   `json:"checker"`
	Looked  string   `json:"looked_at"`
	Wrong   []string `json:"violations"`
}

func (v Verdict) String() string {
	said := "ok"
	if len(v.Wrong) > 0 {
		said = fmt.Sprintf("%d VIOLATIONS", len(v.Wrong))
	}
	return fmt.Sprintf("%-10s %-14s %s", v.Checker, said, v.Looked)
}

func (v *Verdict) add(found []check.Violation) {
	for _, f := range found {
		v.Wrong = append(v.Wrong, f.String())
	}
}

// lacks makes a verdict of something to look at that is not there: nothing was
// checked, so nothing was shown.
func (v *Verdict) lacks(is bool, what string) {
	if is {
		v.Wrong = append(v.Wrong, "nothing was checked: "+what)
	}
}

// Of the search as a second opinion: small windows, which it decides fast.
const (
	porcupineWindow  = 250
	porcupineTimeout = 20 * time.Second
)

// Judge asks every checker about a run of so many clients, which did faults for a
// while. The guests of the load push as well.
func Judge(ops []history.Op, seen cluster.Sights, clients int, faults time.Duration) (check.Tally, []Verdict) {
	clients += load.Guests
	t := check.Count(ops)

	exact := Verdict{Checker: "exact", Looked: fmt.Sprintf("every read against every push: %v", t)}
	exact.add(check.Vec(ops, clients))
	exact.lacks(t.FinalReads == 0 || t.UnreadRows > 0, fmt.Sprintf("%d rows were not read in the end", t.UnreadRows))
	if t.Lost > 0 || t.Doubled > 0 {
		exact.Wrong = append(exact.Wrong, fmt.Sprintf("%d additions lost, %d doubled", t.Lost, t.Doubled))
	}

	var opinion check.Opinion
	for range 2 { // again if this process stood still for all of the time
		opinion = check.Porcupine(ops, clients, check.PorcupineOptions{Window: porcupineWindow, Timeout: porcupineTimeout +
			faults/20})
		if opinion.OK+len(opinion.Illegal) > 0 || opinion.Windows == 0 {
			break
		}
	}
	porcupine := Verdict{Checker: "porcupine", Looked: opinion.String()}
	porcupine.add(opinion.Illegal)
	porcupine.lacks(opinion.OK+len(opinion.Illegal) == 0, "no window was decided")

	replies := check.Replies(ops)
	mono := Verdict{Checker: "indices", Looked: fmt.Sprintf("applied indices of %d replies run forwards", len(replies))}
	mono.add(check.Mono(replies))

	leaders := Verdict{Checker: "leaders",
		Looked: fmt.Sprintf("%d sights of leaders, by their status and their logs: one for each of %d terms", len(seen.Leads),
			Terms(seen.Leads))}
	leaders.add(check.Leaders(seen.Leads))
	leaders.lacks(len(seen.Leads) == 0, "no leader was seen")

	shared := check.Shared(seen.Digests)
	digests := Verdict{Checker: "digests", Looked: fmt.Sprintf("%d digests, %d times of several replicas at one index",
		len(seen.Digests), shared)}
	digests.add(check.Digests(seen.Digests))
	digests.lacks(shared == 0, "no two replicas were seen at one index")
	return t, []Verdict{exact, porcupine, mono, leaders, digests}
}

// Terms counts the terms with a leader.
func Terms(leads []check.Leading) int {
	seen := make(map[cluster.Lead]bool)
	for _, l := range leads {
		seen[cluster.Lead{Shard: rowraft.ShardID(l.Shard), Term: rowraft.Term(l.Term)}] = true
	}
	return len(seen)
}
