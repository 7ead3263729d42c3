package jobs

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// Score is a score of a job's model on held-out examples.
type Score struct {
	Metric     string // 1 to 32 bytes
	Value      float64
	Step       int64  // batches that the worker that scored had trained
	Checkpoint string // DESTINATION/NAME of the checkpoint that was made after the score; "": none
}

// Scores are the scores of a run of a job, which the scheduler keeps until another run begins.
type Scores struct {
	Best      *Score // nil: there is none
	Saved     *Score // the last score with a checkpoint; nil: none has one
	SinceBest int    // number of scores after the best one
}

// ReportScore records a score and returns the scores of the run. The score becomes the best one if it is better by more
// than minDelta; a smaller number is better if lower is set. A score with a checkpoint is not a new one: it adds the
// checkpoint to the score of its step. A repeated call changes nothing.
//
// Errors: CodeSessionExpired if the member does not train any more; CodeInvalidArgument for a value that is not finite.
func (m *Member) ReportScore(ctx context.Context, s Score, lower bool, minDelta float64) (all Scores, err error) {
	q := &rowraftv1.ReportScoreRequest{Identity: m.identity, LowerIsBetter: lower, MinDelta: minDelta,
		Score: &rowraftv1.JobScore{Metric: s.Metric, Value: s.Value, Step: uint64(s.Step), Checkpoint: s.Checkpoint}}
	err = jobsCall(ctx, m.control, "report a score of job "+m.Job(),
		func(ctx context.Context, stub rowraftv1.JobsClient) error {
			r, err := stub.ReportScore(ctx, q)
			all = scoresOf(r.GetScores())
			return err
		})
	return all, err
}

// Scores returns the scores of the member's run. Errors: CodeNotFound if another run of the job has begun.
func (m *Member) Scores(ctx context.Context) (all Scores, err error) {
	err = jobsCall(ctx, m.control, "describe job "+m.Job(), func(ctx context.Context, stub rowraftv1.JobsClient) error {
		r, err := stub.DescribeJob(ctx, &rowraftv1.DescribeJobRequest{Job: m.Job()})
		if err == nil && !slices.Equal(r.GetJob().GetRun(), m.identity.GetRun()) {
			return rowraft.Errorf(rowraft.CodeNotFound, "another run of job %s has begun", m.Job())
		}
		all = scoresOf(r.GetJob().GetScores())
		return err
	})
	return all, err
}

func scoresOf(p *rowraftv1.JobScores) Scores {
	return Scores{Best: scoreOf(p.GetBest()), Saved: scoreOf(p.GetSaved()), SinceBest: int(p.GetSinceBest())}
}

func scoreOf(p *rowraftv1.JobScore) *Score {
	if p == nil {
		return nil
	}
	return &Score{Metric: p.GetMetric(), Value: p.GetValue(), Step: int64(p.GetStep()), Checkpoint: p.GetCheckpoint()}
}

// Stop stops the run of the job: all its workers end in order. reason is for people.
func (m *Member) Stop(ctx context.Context, reason string) error {
	return jobsCall(ctx, m.control, "stop job "+m.Job(), func(ctx context.Context, stub rowraftv1.JobsClient) error {
		_, err := stub.StopJob(ctx, &rowraftv1.StopJobRequest{Job: m.Job(), Reason: reason})
		return err
	})
}

// OnRequest is the interval of a policy that makes checkpoints with RunPolicy only: the longest one that there is.
const OnRequest = 366 * 24 * time.Hour

// RunPolicy makes the next checkpoint of a policy now and returns its place, DESTINATION/NAME.
func RunPolicy(ctx context.Context, c *client.Client, name string) (made string, err error) {
	err = c.Control().CallLong(ctx, "make a checkpoint of policy "+name,
		func(ctx context.Context, conn grpc.ClientConnInterface) error {
			r, err := rowraftv1.NewCheckpointsClient(conn).RunPolicy(ctx, &rowraftv1.RunPolicyRequest{Name: name})
			made = newestOf(r.GetPolicy())
			return err
		})
	return made, err
}

// NewestOf returns the place of the newest checkpoint of a policy, DESTINATION/NAME; "" if it has none. found is false
// if there is no such policy.
func NewestOf(ctx context.Context, c *client.Client, name string) (made string, found bool, err error) {
	err = policyCall(ctx, c, "list checkpoint policies",
		func(ctx context.Context, stub rowraftv1.CheckpointsClient) error {
			r, err := stub.ListPolicies(ctx, &rowraftv1.ListPoliciesRequest{})
			i := slices.IndexFunc(r.GetPolicies(), func(p *rowraftv1.PolicyStatus) bool {
				return p.GetPolicy().GetName() == name
			})
			if found = i >= 0; found {
				made = newestOf(r.GetPolicies()[i])
			}
			return err
		})
	return made, found, err
}

// DeletePolicy deletes a policy. Its checkpoints stay.
func DeletePolicy(ctx context.Context, c *client.Client, name string) error {
	return policyCall(ctx, c, "delete checkpoint policy "+name,
		func(ctx context.Context, stub rowraftv1.CheckpointsClient) error {
			_, err := stub.DeletePolicy(ctx, &rowraftv1.DeletePolicyRequest{Name: name})
			return err
		})
}

func newestOf(p *rowraftv1.PolicyStatus) string {
	made := p.GetRecord().GetMade()
	if len(made) == 0 {
		return ""
	}
	return fmt.Sprintf("%s/%s", p.GetPolicy().GetDestination(), made[len(made)-1].GetName())
}

func policyCall(ctx context.Context, c *client.Client, what string,
	call func(context.Context, rowraftv1.CheckpointsClient) error) error {
	return c.Control().Call(ctx, what, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		return call(ctx, rowraftv1.NewCheckpointsClient(conn))
	})
}
