package meta

import (
	"fmt"
	"slices"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// save adds the runs to a snapshot.
func (g *registry) save(p *rowraftv1.MetaState) {
	p.Runs, p.EndedRuns, p.LastIncarnation = slices.Clone(g.runs), g.endedRuns, uint64(g.lastIncarnation)
}

// load takes the runs of a snapshot and checks them.
func (g *registry) load(p *rowraftv1.MetaState) error {
	g.runs, g.endedRuns, g.lastIncarnation = p.GetRuns(), p.GetEndedRuns(), rowraft.Incarnation(p.GetLastIncarnation())
	if len(g.endedRuns) > maxEndedRuns || slices.ContainsFunc(g.endedRuns, func(id []byte) bool { return len(id) != 16 }) {
		return fmt.Errorf("%d runs are to be forgotten", len(g.endedRuns))
	}
	if len(g.runs) > MaxJobs {
		return fmt.Errorf("%d runs of jobs", len(g.runs))
	}
	for i, r := range g.runs {
		if i > 0 && g.runs[i-1].GetJob() >= r.GetJob() {
			return fmt.Errorf("runs are out of order")
		}
		if err := checkRun(r); err != nil {
			return err
		}
		if p := r.GetPrevious(); p != nil {
			if p.GetJob() != r.GetJob() || p.GetPrevious() != nil || len(TrainingRanks(p)) > 0 {
				return fmt.Errorf("job %s: the previous run is of job %s, or has members or a previous run", r.GetJob(), p.GetJob())
			}
			if err := checkRun(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkRun checks a run of a snapshot by itself.
func checkRun(r *rowraftv1.MetaRun) error {
	if n := len(r.GetJob()); n < 1 || n > maxNameLength || len(r.GetRun()) != 16 || r.GetWorkers() < 1 ||
		r.GetWorkers() > MaxWorkers || r.GetData() == nil {
		return fmt.Errorf("a run of job %q with %d workers", r.GetJob(), r.GetWorkers())
	}
	for k, m := range r.GetMembers() {
		if m.GetRank() >= r.GetWorkers() || k > 0 && r.GetMembers()[k-1].GetRank() >= m.GetRank() {
			return fmt.Errorf("rank %d of job %s is out of order", m.GetRank(), r.GetJob())
		}
	}
	if n := len(r.GetTables()); n > MaxTables {
		return fmt.Errorf("job %s: %d tables, the limit is %d", r.GetJob(), n, MaxTables)
	}
	if err := checkSettings(r.GetSettings()); err != nil {
		return fmt.Errorf("job %s: %w", r.GetJob(), err)
	}
	if err := checkData(r.GetData()); err != nil {
		return fmt.Errorf("job %s: %w", r.GetJob(), err)
	}
	if err := checkScores(r.GetScores()); err != nil {
		return fmt.Errorf("job %s: %w", r.GetJob(), err)
	}
	return nil
}
