package scheduler

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/histogram"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// maxJobLabels is the number of training jobs with metrics of their own. Further ones are only in rowraft_jobs.
const maxJobLabels = 64

// The control loops whose rounds are timed. The checkpoints of policies have a histogram of their own.
const (
	loopReconcile = iota
	loopMoves
	loopPlacement
	loops
)

var loopNames = [loops]string{"reconcile", "moves", "placement"}

// stats counts what this member did while it led the scheduler's group.
type stats struct {
	rounds [loops]histogram.Durations

	mu       sync.Mutex
	commands map[command]uint64
	moves    map[string]uint64   // by what happened: started, done, cancelled
	moveTook histogram.Durations // of moves that are done
}

// command is a kind of command of the scheduler's group, with its result.
type command struct{ name, code string }

// round returns a function that adds the time until its call to a loop.
func (s *stats) round(loop int) func() {
	begun := time.Now()
	return func() { s.rounds[loop].Observe(time.Since(begun)) }
}

var commandField = (&rowraftv1.MetaCommand{}).ProtoReflect().Descriptor().Oneofs().ByName("command")

// proposed counts a command with its result, or its error.
func (s *stats) proposed(c *rowraftv1.MetaCommand, result any, err error) {
	kind := command{code: "OK"}
	if f := c.ProtoReflect().WhichOneof(commandField); f != nil {
		kind.name = string(f.Name())
	}
	if err != nil {
		kind.code = rowraft.CodeOf(err).String()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.commands == nil {
		s.commands, s.moves = make(map[command]uint64), make(map[string]uint64)
	}
	s.commands[kind]++
	m, ok := result.(meta.Move)
	switch {
	case err != nil || !ok:
	case c.GetStartMove() != nil:
		s.moves["started"]++
	case m.Phase == meta.PhaseDone:
		s.moves["done"]++
		if took := m.Took(); took > 0 { // else it is unknown
			s.moveTook.Observe(took)
		}
	case m.Phase == meta.PhaseCancelled:
		s.moves["cancelled"]++
	}
}

var (
	leaderDesc  = desc("scheduler_leader", "1: this server leads the scheduler.")
	roundDesc   = desc("scheduler_loop_seconds", "Time of one round of a control loop of the scheduler.", "loop")
	commandDesc = desc("scheduler_commands_total", "Commands to the log of the scheduler, by their result.", "command",
		"code")
	serversDesc = desc("servers", "Servers by state: up, suspect, down; by the leader of the scheduler.", "state")
	tablesDesc  = desc("tables", "Tables of the cluster; by the leader of the scheduler.")
	movingDesc  = desc("moves", "Moves of replicas that run now, by phase; by the leader of the scheduler.", "phase")
	movesDesc   = desc("moves_total",
		"Moves of replicas that this server started and ended (done, cancelled), as leader.",
		"event")
	moveTookDesc = desc("move_seconds", "Time of a move of a replica from its start to its end, of moves that are done.")

	jobsDesc = desc("jobs",
		"Training jobs by state: running, stopped, done, failed; by the scheduler's leader.", "state")
	trainersDesc = desc("trainers_connected", "Trainers that are connected to the leader of the scheduler.")
	workersDesc  = desc("job_workers", "Workers of a running job by state: training, ended, stopped, lost, failed.",
		"training_job", "state")

	policyAgeDesc = desc("checkpoint_policy_age_seconds", "Time since the begin of the newest checkpoint of a policy; if "+
		"there is none, since the policy was set. Absent while no trainer of the policy's job is connected.", "policy")
	policyEveryDesc = desc("checkpoint_policy_interval_seconds", "Time between two checkpoints of a policy.", "policy")
	policyFailDesc  = desc("checkpoint_policy_failures", "Failed runs of a policy since its last checkpoint.", "policy")
	checkpointDesc  = desc("checkpoint_seconds", "Time of a checkpoint, by result: ok or failed.", "result")
	lastBytesDesc   = desc("checkpoint_last_bytes", "Size of the newest checkpoint that this leader made.")
	lastAtDesc      = desc("checkpoint_last_success_timestamp_seconds",
		"When this leader made its newest checkpoint, in Unix time.")
)

// jobMetrics have the label training_job: Prometheus uses job for its own jobs. Workers report about once a second; a
// number that no worker knows is absent.
var jobMetrics = []struct {
	desc *prometheus.Desc
	of   func([]*rowraftv1.WorkerBeat) float64
}{
	{desc("job_examples_per_second", "Examples per second of all workers of the job.", "training_job"),
		func(b []*rowraftv1.WorkerBeat) float64 { return sum(b, (*rowraftv1.WorkerBeat).GetExamplesPerSecond) }},
	{desc("job_step", "Highest step of the workers of the job.", "training_job"),
		func(b []*rowraftv1.WorkerBeat) float64 {
			return highest(b, func(w *rowraftv1.WorkerBeat) float64 { return float64(w.GetStep()) })
		}},
	{desc("job_loss", "Mean loss of the workers' recent batches, nats.", "training_job"),
		func(b []*rowraftv1.WorkerBeat) float64 { return mean(b, (*rowraftv1.WorkerBeat).GetLoss) }},
	{desc("job_auc", "Mean AUC of the workers' recent batches, predicted before the update.", "training_job"),
		func(b []*rowraftv1.WorkerBeat) float64 { return mean(b, (*rowraftv1.WorkerBeat).GetAuc) }},
	{desc("job_staleness_steps", "Steps by which the weights of recent batches lagged, of the worker with the "+
		"most; in mode async pushes of other batches.",
		"training_job"),
		func(b []*rowraftv1.WorkerBeat) float64 { return highest(b, (*rowraftv1.WorkerBeat).GetStalenessSteps) }},
	{desc("job_waiting_ratio", "Share of their time in which the workers wait for data, rows or others, 0 to 1.",
		"training_job"),
		func(b []*rowraftv1.WorkerBeat) float64 { return mean(b, (*rowraftv1.WorkerBeat).GetWaiting) }},
}

// known returns the values of a field that are numbers: a worker reports NaN for what it does not know.
func known(beats []*rowraftv1.WorkerBeat, of func(*rowraftv1.WorkerBeat) float64) (out []float64) {
	for _, b := range beats {
		if v := of(b); !math.IsNaN(v) {
			out = append(out, v)
		}
	}
	return out
}

func sum(beats []*rowraftv1.WorkerBeat, of func(*rowraftv1.WorkerBeat) float64) (s float64) {
	for _, v := range known(beats, of) {
		s += v
	}
	return s
}

// highest and mean return NaN if no worker knows the number.
func highest(beats []*rowraftv1.WorkerBeat, of func(*rowraftv1.WorkerBeat) float64) float64 {
	values := known(beats, of)
	if len(values) == 0 {
		return math.NaN()
	}
	return slices.Max(values)
}

func mean(beats []*rowraftv1.WorkerBeat, of func(*rowraftv1.WorkerBeat) float64) float64 {
	return sum(beats, of) / float64(len(known(beats, of)))
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("rowraft_"+name, help, labels, nil)
}

// Describe sends the descriptions of what Collect sends.
func (s *Scheduler) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{leaderDesc, roundDesc, commandDesc, serversDesc, tablesDesc, movingDesc,
		movesDesc, moveTookDesc, jobsDesc, trainersDesc, workersDesc, policyAgeDesc, policyEveryDesc, policyFailDesc,
		checkpointDesc, lastBytesDesc, lastAtDesc} {
		ch <- d
	}
	for _, d := range jobMetrics {
		ch <- d.desc
	}
}

// Collect sends the metrics of the scheduler. Those of the cluster come from the scheduler's leader only.
func (s *Scheduler) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	times := func(d *prometheus.Desc, of *histogram.Durations, labels ...string) {
		h := of.Snapshot()
		ch <- prometheus.MustNewConstHistogram(d, h.Count, h.Sum.Seconds(), h.Buckets, labels...)
	}
	st := &s.group.stats
	for loop, name := range loopNames {
		times(roundDesc, &st.rounds[loop], name)
	}
	times(roundDesc, s.jobs.Rounds(), "jobs")
	times(moveTookDesc, &st.moveTook)
	st.mu.Lock()
	commands, moves := maps.Clone(st.commands), maps.Clone(st.moves)
	st.mu.Unlock()
	for c, n := range commands {
		count(commandDesc, n, c.name, c.code)
	}
	for _, event := range []string{"started", "done", "cancelled"} {
		count(movesDesc, moves[event], event)
	}
	made := s.checkpoints.Made()
	times(checkpointDesc, made.Took, "ok")
	times(checkpointDesc, made.Failed, "failed")
	if !made.LastAt.IsZero() {
		gauge(lastAtDesc, float64(made.LastAt.Unix()))
		gauge(lastBytesDesc, float64(made.LastBytes))
	}
	m := s.view.Map()
	l, term, err := s.leading()
	if err != nil || m == nil || rowraft.Term(s.synced.Load()) != term || l == nil {
		gauge(leaderDesc, 0)
		return
	}
	gauge(leaderDesc, 1)
	gauge(tablesDesc, float64(len(m.Tables)))
	servers := map[string]int{"up": 0, "suspect": 0, "down": 0}
	for _, n := range m.Nodes {
		servers[s.liveness(n.ID).state]++
	}
	for state, n := range servers {
		gauge(serversDesc, float64(n), state)
	}
	running, _ := s.machine.Moves()
	phases := map[string]int{}
	for _, p := range []meta.Phase{meta.PhaseLearn, meta.PhasePromote, meta.PhaseRemove, meta.PhaseCancel} {
		phases[meta.PhaseName(p)] = 0
	}
	for _, mv := range running {
		phases[meta.PhaseName(mv.Phase)]++
	}
	for phase, n := range phases {
		gauge(movingDesc, float64(n), phase)
	}
	for _, p := range s.machine.Policies() {
		name := p.GetPolicy().GetName()
		gauge(policyEveryDesc, time.Duration(p.GetPolicy().GetEveryNs()).Seconds(), name)
		gauge(policyFailDesc, float64(p.GetRecord().GetFailures()), name)
		if age, ok := s.checkpoints.Age(p, time.Now()); ok {
			gauge(policyAgeDesc, age.Seconds(), name)
		}
	}
	s.collectJobs(gauge)
}

// collectJobs sends the numbers of the training jobs.
func (s *Scheduler) collectJobs(gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	gauge(trainersDesc, float64(len(s.jobs.Trainers().Connected())))
	states := map[rowraftv1.JobState]int{rowraftv1.JobState_JOB_STATE_RUNNING: 0,
		rowraftv1.JobState_JOB_STATE_STOPPED: 0, rowraftv1.JobState_JOB_STATE_DONE: 0,
		rowraftv1.JobState_JOB_STATE_FAILED: 0}
	var running []*rowraftv1.JobInfo
	for _, r := range s.machine.Runs() {
		states[r.GetState()]++
		if r.GetState() == rowraftv1.JobState_JOB_STATE_RUNNING {
			running = append(running, s.jobs.Info(r))
		}
	}
	for state, n := range states {
		gauge(jobsDesc, float64(n), strings.ToLower(strings.TrimPrefix(state.String(), "JOB_STATE_")))
	}
	slices.SortFunc(running, func(a, b *rowraftv1.JobInfo) int { return cmp.Compare(a.GetJob(), b.GetJob()) })
	for _, job := range running[:min(len(running), maxJobLabels)] {
		var beats []*rowraftv1.WorkerBeat
		workers := make(map[rowraftv1.MemberState]int)
		for _, m := range job.GetMembers() {
			workers[m.GetMember().GetState()]++
			if m.GetBeat() != nil {
				beats = append(beats, m.GetBeat())
			}
		}
		for state := range rowraftv1.MemberState_name {
			if state := rowraftv1.MemberState(state); state != rowraftv1.MemberState_MEMBER_STATE_UNSPECIFIED {
				gauge(workersDesc, float64(workers[state]), job.GetJob(),
					strings.ToLower(strings.TrimPrefix(state.String(), "MEMBER_STATE_")))
			}
		}
		for _, d := range jobMetrics {
			if v := d.of(beats); len(beats) > 0 && !math.IsNaN(v) {
				gauge(d.desc, v, job.GetJob())
			}
		}
	}
}
