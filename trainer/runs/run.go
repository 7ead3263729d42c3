package runs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/report"
)

// Head returns the head of the process that began first; the zero Head if no file can be read.
func (r *Run) Head() Head {
	if len(r.Processes) == 0 {
		return Head{}
	}
	return slices.MinFunc(r.Processes, func(a, b *Process) int { return a.Head.Started.Compare(b.Head.Started) }).Head
}

// Started returns when the run began.
func (r *Run) Started() time.Time { return r.Head().Started }

// Duration returns the time until the last thing that a process recorded.
func (r *Run) Duration() time.Duration {
	var last time.Time
	for _, p := range r.Processes {
		if t := p.last(); t.After(last) {
			last = t
		}
	}
	return max(last.Sub(r.Started()), 0)
}

// current returns the last process of each rank: the earlier ones were started again.
func (r *Run) current() (all []*Process) {
	for i, p := range r.Processes {
		if i+1 == len(r.Processes) || r.Processes[i+1].Head.Rank != p.Head.Rank {
			all = append(all, p)
		}
	}
	return all
}

// State returns Running if a process runs, Finished if one has finished the job, and otherwise the worst state of its
// trainers. The others of a job finish it without a trainer that failed or was killed.
func (r *Run) State() State {
	for _, s := range []State{Running, Finished, Failed, Killed, Interrupted} {
		if slices.ContainsFunc(r.current(), func(p *Process) bool { return p.State == s }) {
			return s
		}
	}
	return Unreadable
}

// Error returns the error of the first trainer that has one, or that of a file that cannot be read.
func (r *Run) Error() string {
	for _, p := range r.current() {
		if p.End != nil && p.End.Error != "" {
			return p.End.Error
		}
	}
	if len(r.Processes) == 0 {
		return errors.Join(r.Errors...).Error()
	}
	return ""
}

// Result returns the result of the trainer of the lowest rank that scored the held-out examples, or of the lowest rank
// that has one; nil if there is none.
func (r *Run) Result() (result *report.Result) {
	for _, p := range r.current() {
		if p.End == nil || p.End.Result == nil {
			continue
		}
		if p.End.Result.HeldExamples > 0 {
			return p.End.Result
		}
		if result == nil {
			result = p.End.Result
		}
	}
	return result
}

// Set returns the settings that the command line changed, sorted by name: "embeddings.lr=0.05 model.dim=8".
func (r *Run) Set() string { return SetText(r.Head().Set) }

// SetText returns settings as --set has them, sorted by name, with spaces between them.
func SetText(set map[string]string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(set)) {
		parts = append(parts, name+"="+set[name])
	}
	return strings.Join(parts, " ")
}

// Score is the quality of a run: the score of the held-out examples after the training, the best one of a run that
// stopped early, or the last one of a run that has not ended.
type Score struct {
	Name  string  // AUC, log loss or RMSE; "" without a score
	Value float64 // NaN without a score
	Less  bool    // a smaller one is better
	Kind  string  // "": after the training; "best", "so far"
}

// String returns the score for people.
func (s Score) String() string {
	if math.IsNaN(s.Value) {
		return "no score"
	}
	text := fmt.Sprintf("%s %.4f", s.Name, s.Value)
	if s.Kind != "" {
		text += " " + s.Kind
	}
	return text
}

// Better reports whether s is better than t. A score is better than none.
func (s Score) Better(t Score) bool {
	switch {
	case math.IsNaN(s.Value) || math.IsNaN(t.Value):
		return !math.IsNaN(s.Value) && math.IsNaN(t.Value)
	case s.Less:
		return s.Value < t.Value
	}
	return s.Value > t.Value
}

// Score returns the score of the run.
func (r *Run) Score() Score {
	s := ScoreOf(r.Result())
	if !math.IsNaN(s.Value) {
		return s
	}
	var at time.Time
	for _, p := range r.Processes {
		for _, h := range p.Held {
			if t := p.Head.Started.Add(duration(float64(h.Seconds))); !t.Before(at) {
				at, s = t, scoreOf(&h.Held, "so far")
			}
		}
	}
	return s
}

// ScoreOf returns the score in a result, which may be nil.
func ScoreOf(r *report.Result) Score {
	switch {
	case r == nil:
	case r.HeldExamples > 0 && (r.StopReason == "" || r.BestScore == nil):
		return scoreOf(report.NewHeld(r.Steps, r), "")
	case r.BestScore != nil: // it stopped early
		return Score{Name: report.MetricName(r.BestScore.Metric), Value: float64(r.BestScore.Value),
			Less: r.BestScore.Metric != report.MetricAUC, Kind: "best"}
	}
	return Score{Value: math.NaN()}
}

func scoreOf(h *report.Held, kind string) Score {
	name, value, less := h.Metric()
	return Score{report.MetricName(name), value, less, kind}
}

// Files returns the files that this package has made for a run, with their bytes, and what else is in its folder.
func (r *Run) Files() (own []string, bytes int64, other []string, err error) {
	entries, err := os.ReadDir(r.Dir)
	if err != nil {
		return nil, 0, nil, err
	}
	for _, e := range entries {
		name := e.Name()
		record, _ := filepath.Match("trainer-*.jsonl", name)
		part, _ := filepath.Match("trainer-*.jsonl.tmp", name)
		page, _ := filepath.Match(PageName+".*.tmp", name)
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || !record && !part && !page && name != PageName {
			other = append(other, name)
			continue
		}
		own, bytes = append(own, name), bytes+info.Size()
	}
	return own, bytes, other, nil
}

// Remove removes the files of a run, and its folder if nothing else is in it.
//
// Errors: CodePrecondition if a process of the run still runs.
func (r *Run) Remove() error {
	if r.State() == Running {
		return rowraft.Errorf(rowraft.CodePrecondition, "run %s is running: stop it first", r.Name)
	}
	own, _, other, err := r.Files()
	if err != nil {
		return err
	}
	for _, name := range own {
		if err := os.Remove(filepath.Join(r.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if len(other) > 0 {
		return nil
	}
	return os.Remove(r.Dir)
}
