package checkpoints

import (
	"context"
	"fmt"
	"strings"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// runsCluster reports whether a caller is an admin or an operator, or has no certificate because TLS is off.
func runsCluster(caller *rpc.Caller) bool {
	return caller == nil || caller.Role == certs.Admin || caller.Role == certs.Operator
}

// CheckDestination refuses a checkpoint that a trainer requests unless it is permitted. A checkpoint holds all tables,
// so the trainer must have read access to all of them, and --checkpoint-destination must permit the destination.
func (c *Service) CheckDestination(ctx context.Context, caller *rpc.Caller, destination string) error {
	if runsCluster(caller) {
		return nil
	}
	if err := readsAll(caller, destination); err != nil {
		return err
	}
	return c.allowed(ctx, destination, caller.String())
}

// readsAll refuses a caller without read access to all tables.
func readsAll(caller *rpc.Caller, destination string) error {
	if !caller.Limited() {
		return nil
	}
	return &rowraft.DeniedError{
		What: fmt.Sprintf("a checkpoint in %q, which holds all tables,", destination),
		Need: "admin or operator, or trainer with the tables *",
		Have: caller.String() + " with the tables " + strings.Join(caller.Tables, ", "),
	}
}

// allowed refuses a destination that --checkpoint-destination does not permit to trainers.
func (c *Service) allowed(ctx context.Context, destination, who string) error {
	if ok, err := depot.Within(ctx, c.destinations, destination); ok || err != nil {
		return err
	}
	list := "none"
	if l := c.destinations; len(l) > 0 {
		list = fmt.Sprintf("%q and what is below", l)
	}
	return &rowraft.DeniedError{What: fmt.Sprintf(
		"checkpoint destination %q (trainers may use, by --checkpoint-destination of the scheduler: %s)", destination, list),
		Need: "admin or operator", Have: who}
}

// mayRun refuses a run of a trainer's policy if the destination is no longer permitted, or if the owner no longer has
// read access to all tables. The certificates of the owner are those of its connected trainers.
func (c *Service) mayRun(ctx context.Context, p *rowraftv1.CheckpointPolicy) error {
	if p.GetOwner() == "" {
		return nil
	}
	trains := false
	for _, caller := range c.trainers.Callers(p.GetJob()) {
		if caller == nil || caller.Name != p.GetOwner() {
			continue
		}
		trains = true
		if err := readsAll(caller, p.GetDestination()); err != nil {
			return err
		}
	}
	if !trains {
		return rowraft.Errorf(rowraft.CodePrecondition, "no trainer of job %s attends with a certificate of %s, the owner "+
			"of checkpoint policy %s: start the job, or have an operator set the policy", p.GetJob(), p.GetOwner(), p.GetName())
	}
	return c.allowed(ctx, p.GetDestination(), "trainer "+p.GetOwner())
}

// maySet refuses a policy that a trainer sets for something else than its own job.
func (c *Service) maySet(ctx context.Context, caller *rpc.Caller, p *rowraftv1.CheckpointPolicy) error {
	if runsCluster(caller) {
		return nil
	}
	if p.GetJob() == "" {
		return &rowraft.DeniedError{What: "checkpoint policy " + p.GetName() + ", which names no job,",
			Need: "admin or operator", Have: caller.String()}
	}
	if err := c.trainers.CheckOwner(ctx, p.GetJob()); err != nil {
		return err
	}
	if err := c.mayChange(caller, p.GetName()); err != nil {
		return err
	}
	return c.CheckDestination(ctx, caller, p.GetDestination())
}

// mayChange refuses a change of a policy unless the caller owns it or runs the cluster.
func (c *Service) mayChange(caller *rpc.Caller, name string) error {
	p := c.machine.PolicyOf(name)
	if p == nil || runsCluster(caller) || p.GetPolicy().GetOwner() == caller.Name {
		return nil
	}
	return meta.NotOwnerError(p.GetPolicy(), caller.String())
}
