package main

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/job"
	"github.com/rowraft/rowraft/internal/cli"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// fakeJobs is a registry whose jobs are at a later point with each look at them.
type fakeJobs struct {
	rowraftv1.UnimplementedJobsServer
	looks  atomic.Int64
	points [][]*rowraftv1.JobInfo // the last one stays
	stops  atomic.Int64

	deletes atomic.Int64
}

func (f *fakeJobs) now() []*rowraftv1.JobInfo {
	return f.points[min(int(f.looks.Add(1)), len(f.points))-1]
}

func (f *fakeJobs) ListJobs(context.Context, *rowraftv1.ListJobsRequest) (*rowraftv1.ListJobsReply, error) {
	return &rowraftv1.ListJobsReply{Jobs: f.now()}, nil
}

func (f *fakeJobs) DescribeJob(_ context.Context,
	q *rowraftv1.DescribeJobRequest) (*rowraftv1.DescribeJobReply, error) {
	for _, j := range f.now() {
		if j.Job == q.Job {
			return &rowraftv1.DescribeJobReply{Job: j}, nil
		}
	}
	return nil, rowraft.Errorf(rowraft.CodeNotFound, "there is no job %s; `rowraft job list` names those that there are",
		q.Job)
}

func (f *fakeJobs) StopJob(_ context.Context, q *rowraftv1.StopJobRequest) (*rowraftv1.StopJobReply, error) {
	f.stops.Add(1)
	reply, err := f.DescribeJob(context.Background(), &rowraftv1.DescribeJobRequest{Job: q.Job})
	return &rowraftv1.StopJobReply{Job: reply.GetJob()}, err
}

func (f *fakeJobs) DeleteJob(_ context.Context, q *rowraftv1.DeleteJobRequest) (*rowraftv1.DeleteJobReply, error) {
	if reply, err := f.DescribeJob(context.Background(), &rowraftv1.DescribeJobRequest{Job: q.Job}); err != nil ||
		!bytes.Equal(reply.GetJob().GetRun(), q.Run) {
		return nil, rowraft.Errorf(rowraft.CodeNotFound, "there is no such run of job %s", q.Job)
	}
	f.deletes.Add(1)
	return &rowraftv1.DeleteJobReply{}, nil
}

// startJobs is a cluster with jobs.
func startJobs(t *testing.T, points ...[]*rowraftv1.JobInfo) (addr string, f *fakeJobs) {
	f = &fakeJobs{points: points}
	return start(t, &fakeCluster{status: sample()}, func(g *grpc.Server) { rowraftv1.RegisterJobsServer(g, f) }), f
}

// runOfTwo is a job that reads its data in splits, with a worker that was lost.
func runOfTwo() *rowraftv1.JobInfo {
	return &rowraftv1.JobInfo{
		Job: "ctr", Run: bytes.Repeat([]byte{0xab}, 16), Workers: 2, State: rowraftv1.JobState_JOB_STATE_RUNNING,
		Generation: 3, LeaseNs: 10e9,
		Settings: []*rowraftv1.JobSetting{{Name: "batch", Value: "512"}, {Name: "mode", Value: "async"}},
		Data: &rowraftv1.JobData{Examples: 160_000, SplitExamples: 10_000, Epochs: 3, Epoch: 1, Split: 8, AgainKnown: 512,
			AgainMost: 2048, Open: []*rowraftv1.JobSplit{
				{Epoch: 1, Split: 3, Offset: 512}, {Epoch: 1, Split: 7, Incarnation: 5, Take: 4},
			}},
		Members: []*rowraftv1.MemberInfo{
			{
				Member: &rowraftv1.RunMember{Rank: 0, Worker: "w0", Incarnation: 5,
					State: rowraftv1.MemberState_MEMBER_STATE_TRAINING},
				Connected: true, SinceHeardNs: 350e6,
				Beat: &rowraftv1.WorkerBeat{Step: 12_345, Examples: 6_320_640, StepsPerSecond: 81.25, ExamplesPerSecond: 41_600,
					Loss: 0.4567891, Auc: 0.78123, StalenessSteps: 2, Waiting: 0.125, BatchesSkipped: 1},
			},
			{Member: &rowraftv1.RunMember{Rank: 1, Worker: "w1", Incarnation: 4, State: rowraftv1.MemberState_MEMBER_STATE_LOST,
				Reason: "it was silent for 10.2s, and its lease is 10s"}},
		},
	}
}

// inStep is a job whose worker has not said how it goes yet.
func inStep() *rowraftv1.JobInfo {
	return &rowraftv1.JobInfo{
		Job: "steady", Run: bytes.Repeat([]byte{1}, 16), Workers: 2, State: rowraftv1.JobState_JOB_STATE_RUNNING,
		Stopping: true, LeaseNs: 2e9, Generation: 1,
		Settings: []*rowraftv1.JobSetting{{Name: "mode", Value: "sync"}, {Name: "quorum", Value: "0.75"}},
		Data:     &rowraftv1.JobData{},
		Members: []*rowraftv1.MemberInfo{{
			Member: &rowraftv1.RunMember{Rank: 1, Worker: "host-17", Incarnation: 9,
				State: rowraftv1.MemberState_MEMBER_STATE_TRAINING}, Connected: true,
			Beat: &rowraftv1.WorkerBeat{StepsPerSecond: math.NaN(), ExamplesPerSecond: math.NaN(), Loss: math.NaN(),
				Auc: math.NaN(), StalenessSteps: math.NaN(), Waiting: math.NaN()},
		}},
	}
}

// ended is runOfTwo after its last worker has left.
func ended(state rowraftv1.JobState, reason string) *rowraftv1.JobInfo {
	j := proto.CloneOf(runOfTwo())
	j.State, j.Reason = state, reason
	m := j.Members[0]
	m.Member.State, m.Connected, m.SinceHeardNs, m.Beat = rowraftv1.MemberState_MEMBER_STATE_ENDED, false, 0, nil
	return j
}

// scored is runOfTwo after an early stop.
func scored() *rowraftv1.JobInfo {
	j := ended(rowraftv1.JobState_JOB_STATE_STOPPED, "early stop: 3 scores were not better than AUC 0.7812 after step 900")
	j.Scores = &rowraftv1.JobScores{
		Best:      &rowraftv1.JobScore{Metric: "auc", Value: 0.78123, Step: 900, Checkpoint: "/c/best-ctr-20261128T120000Z"},
		SinceBest: 3,
	}
	j.Scores.Saved = j.Scores.Best
	return j
}

func TestGoldenOutputOfJobs(t *testing.T) {
	all := []*rowraftv1.JobInfo{runOfTwo(), inStep()}
	stopped := []*rowraftv1.JobInfo{ended(rowraftv1.JobState_JOB_STATE_STOPPED, "")}
	for name, tc := range map[string]struct {
		args   []string
		points [][]*rowraftv1.JobInfo
	}{
		"job-list":                 {[]string{"list"}, [][]*rowraftv1.JobInfo{all}},
		"job-list-wide":            {[]string{"list", "-o", "wide"}, [][]*rowraftv1.JobInfo{all}},
		"job-list-json":            {[]string{"list", "-o", "json"}, [][]*rowraftv1.JobInfo{all}},
		"job-list-none":            {[]string{"list"}, [][]*rowraftv1.JobInfo{nil}},
		"job-describe":             {[]string{"describe", "ctr"}, [][]*rowraftv1.JobInfo{all}},
		"job-describe-scores":      {[]string{"describe", "ctr"}, [][]*rowraftv1.JobInfo{{scored()}}},
		"job-describe-scores-json": {[]string{"describe", "ctr", "-o", "json"}, [][]*rowraftv1.JobInfo{{scored()}}},
		"job-describe-wide":        {[]string{"describe", "ctr", "-o", "wide"}, [][]*rowraftv1.JobInfo{all}},
		"job-describe-yaml":        {[]string{"describe", "steady", "-o", "yaml"}, [][]*rowraftv1.JobInfo{all}},
		"job-describe-json":        {[]string{"describe", "steady", "-o", "json"}, [][]*rowraftv1.JobInfo{all}},
		"job-stop":                 {[]string{"stop", "ctr"}, [][]*rowraftv1.JobInfo{all, all, stopped}},
		"job-delete":               {[]string{"delete", "ctr", "--yes"}, [][]*rowraftv1.JobInfo{stopped}},
		"job-delete-json":          {[]string{"delete", "ctr", "--yes", "-o", "json"}, [][]*rowraftv1.JobInfo{stopped}},
		"job-stop-json":            {[]string{"stop", "ctr", "-o", "json"}, [][]*rowraftv1.JobInfo{all, stopped}},
	} {
		t.Run(name, func(t *testing.T) {
			addr, _ := startJobs(t, tc.points...)
			got := rowraftCmd(t, append([]string{"job"}, append(tc.args, "--insecure", "--endpoints", addr)...)...)
			if got.code != cli.ExitDone || got.errout != "" {
				t.Fatalf("exit code %d, stderr %q", got.code, got.errout)
			}
			golden(t, name, got.out)
		})
	}
}

// The watch continues while a worker trains, and ends when the job has ended.
func TestAWatchEndsWithItsJob(t *testing.T) {
	running := []*rowraftv1.JobInfo{runOfTwo()}
	for _, tc := range []struct {
		name string
		end  *rowraftv1.JobInfo
		exit int
		says string
	}{
		{"done", ended(rowraftv1.JobState_JOB_STATE_DONE, ""), cli.ExitDone, ""},
		{"stopped", ended(rowraftv1.JobState_JOB_STATE_STOPPED, ""), cli.ExitDone, ""},
		{"failed", ended(rowraftv1.JobState_JOB_STATE_FAILED, "worker w0: no more disk"), cli.ExitFailed,
			"job ctr has failed: worker w0: no more disk"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			addr, f := startJobs(t, running, running, []*rowraftv1.JobInfo{tc.end})
			got := rowraftCmd(t, "job", "watch", "ctr", "--every", "100ms", "-o", "json", "--insecure", "--endpoints", addr)
			if got.code != tc.exit || !strings.Contains(got.errout, tc.says) {
				t.Errorf("exit code %d, want %d: %q", got.code, tc.exit, got.errout)
			}
			var states []string
			for line := range strings.Lines(got.out) {
				var v struct{ Job job.Job }
				if err := json.Unmarshal([]byte(line), &v); err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				states = append(states, v.Job.State)
			}
			if strings.Join(states, " ") != "running running "+tc.name || f.looks.Load() != 3 {
				t.Errorf("it shows the states %v after %d looks", states, f.looks.Load())
			}
		})
	}
	t.Run("lines for people", func(t *testing.T) {
		addr, _ := startJobs(t, running, []*rowraftv1.JobInfo{ended(rowraftv1.JobState_JOB_STATE_DONE, "")})
		got := rowraftCmd(t, "job", "watch", "ctr", "--every", "100ms", "--insecure", "--endpoints", addr)
		for _, want := range []string{
			" job ctr running  1/2 workers  81.2 steps/s  41600 examples/s  epoch 1.44/3\n", "  rank 1 w1 lost  step -",
			"  rank 0 w0 training  step 12,345  81.2 steps/s  41600 examples/s  loss 0.4568  AUC 0.7812  staleness 2.0  " +
				"waiting 12%\n", " job ctr done  0/2 workers",
		} {
			if !strings.Contains(got.out, want) {
				t.Errorf("exit code %d; it does not say %q:\n%s%s", got.code, want, got.out, got.errout)
			}
		}
	})
}

// Ctrl-C ends the watch, and nothing else.
func TestAWatchThatIsInterrupted(t *testing.T) {
	addr, f := startJobs(t, []*rowraftv1.JobInfo{runOfTwo()})
	ctx, interrupt := context.WithCancel(t.Context())
	out := writerFunc(func(b []byte) (int, error) {
		if bytes.Contains(b, []byte("running")) {
			interrupt()
		}
		return len(b), nil
	})
	var errout bytes.Buffer
	if code := run(ctx, []string{"job", "watch", "ctr", "--every", "1h", "--insecure", "--endpoints", addr}, out,
		&errout); code != cli.ExitDone {
		t.Errorf("exit code %d", code)
	}
	if !strings.Contains(errout.String(), "job ctr continues; `rowraft job stop ctr` stops it") || f.stops.Load() != 0 {
		t.Errorf("%d calls to stop it; it says %q", f.stops.Load(), &errout)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// What cannot be done says so.
func TestJobErrors(t *testing.T) {
	addr, _ := startJobs(t, []*rowraftv1.JobInfo{runOfTwo()})
	for _, tc := range []struct {
		args []string
		exit int
		says string
	}{
		{[]string{"describe", "crt"}, cli.ExitFailed, "there is no job crt; `rowraft job list` names"},
		{[]string{"watch", "crt"}, cli.ExitFailed, "there is no job crt"},
		{[]string{"stop", "crt"}, cli.ExitFailed, "there is no job crt"},
		{[]string{"watch", "ctr", "--every", "1ms"}, cli.ExitUsage, "want 100ms or more"},
		{[]string{"watch"}, cli.ExitUsage, "the NAME of the job"},
		{[]string{"stop", "a", "b"}, cli.ExitUsage, "want one argument, the NAME of the job; got 2"},
		{[]string{"descrbe", "ctr"}, cli.ExitUsage, `did you mean "describe"`},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			got := rowraftCmd(t, append([]string{"job"}, append(tc.args, "--insecure", "--endpoints", addr)...)...)
			if got.code != tc.exit || !strings.Contains(got.errout, tc.says) {
				t.Errorf("exit code %d, want %d and %q: %q", got.code, tc.exit, tc.says, got.errout)
			}
		})
	}
}

// golden compares with testdata/NAME.txt; -update writes it again.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A job is deleted when its name was typed, and not while it trains.
func TestDeletingAJobAsks(t *testing.T) {
	stopped := []*rowraftv1.JobInfo{ended(rowraftv1.JobState_JOB_STATE_STOPPED, "")}
	addr, f := startJobs(t, stopped)
	if got := rowraftCmd(t, "job", "delete", "ctr", "--insecure", "--endpoints", addr); got.code != cli.ExitRefused ||
		!strings.Contains(got.errout, "nothing was changed") || f.deletes.Load() != 0 {
		t.Errorf("without an answer: exit code %d, %q, %d deleted", got.code, got.errout, f.deletes.Load())
	}
	if got := rowraftCmd(t, "job", "delete", "ctr", "--yes", "--insecure", "--endpoints",
		addr); got.code != cli.ExitDone || f.deletes.Load() != 1 {
		t.Errorf("with --yes: exit code %d, %q, %d deleted", got.code, got.errout, f.deletes.Load())
	}
	addr, f = startJobs(t, []*rowraftv1.JobInfo{runOfTwo()})
	if got := rowraftCmd(t, "job", "delete", "ctr", "--yes", "--insecure", "--endpoints",
		addr); got.code == cli.ExitDone || !strings.Contains(got.errout, "rowraft job stop ctr") || f.deletes.Load() != 0 {
		t.Errorf("a job that trains: exit code %d, %q, %d deleted", got.code, got.errout, f.deletes.Load())
	}
}
