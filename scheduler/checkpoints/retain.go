package checkpoints

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint/depot"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// retain deletes the checkpoints that a policy made and need not keep. It deletes no other checkpoints.
//
// It always keeps the newest complete ones, as many as the policy says. A checkpoint is complete if all files of its
// whole chain exist with the sizes in the manifests, no verification has found damage, and, if the policy asks for
// that, every byte was read. retain neither counts nor deletes an incomplete checkpoint, and deletes nothing while the
// newest one is incomplete. It also keeps the checkpoints that tables come from, because jobs resume from those.
func (c *Service) retain(ctx context.Context, name string) error {
	p := c.machine.PolicyOf(name)
	if p == nil {
		return nil // the policy was deleted
	}
	d, err := depot.Open(p.GetPolicy().GetDestination())
	if err != nil {
		return err
	}
	made := p.GetRecord().GetMade()
	if len(made) == 0 {
		return nil
	}
	there, err := depot.Scan(ctx, d)
	if err != nil {
		return c.logForgotten(ctx, name, "", err)
	}
	var broken []error
	whole := uint32(0)
	for i := len(made) - 1; i >= 0; i-- { // newest first: a delta is deleted before its base
		at := slices.IndexFunc(there, func(f depot.Found) bool { return f.Name == made[i].GetName() })
		if at < 0 || there[at].Manifest == nil && there[at].Err == nil { // another tool or user deleted it
			if err := c.logForgotten(ctx, name, made[i].GetName(), nil); err != nil {
				return err
			}
			continue
		}
		f := &there[at]
		young := time.Since(time.Unix(0, int64(made[i].GetBegunNs()))) < time.Duration(p.GetPolicy().GetKeepWithinNs())
		stays := whole < p.GetPolicy().GetKeep() || young
		if stays && f.Usable() && p.GetPolicy().GetVerify() && !f.Verified {
			if _, _, f.Err = depot.Verify(ctx, d, f.Name, nil); ctx.Err() != nil {
				return ctx.Err()
			}
		}
		if !f.Usable() {
			if broken = append(broken, f.Err); whole == 0 {
				break // nothing is deleted while the newest checkpoint is not complete
			}
			continue
		}
		if whole++; stays || c.resumesFrom(f.Manifest.ID) {
			continue
		}
		_, _, err := depot.Delete(ctx, d, f.Name, false)
		if rowraft.CodeOf(err) == rowraft.CodeAlreadyExists {
			continue // the base of a delta
		}
		if err != nil && rowraft.CodeOf(err) != rowraft.CodeNotFound {
			return c.logForgotten(ctx, name, "", err)
		}
		c.logger.Info("a checkpoint policy removed a checkpoint", "policy", name, "checkpoint", f.Name)
		if err := c.logForgotten(ctx, name, f.Name, nil); err != nil {
			return err
		}
	}
	var why error
	if len(broken) > 0 {
		why = fmt.Errorf("%d of %d checkpoints cannot be restored: %w", len(broken), len(made), errors.Join(broken...))
	}
	if why == nil && c.machine.PolicyOf(name).GetRecord().GetRetentionError() == "" {
		return nil
	}
	return c.logForgotten(ctx, name, "", why)
}

// resumesFrom reports whether tables of the cluster come from the checkpoint with this id, or a run began from it.
func (c *Service) resumesFrom(id string) bool {
	sources, _ := c.machine.Sources()
	return slices.ContainsFunc(sources, func(r *rowraftv1.MetaRestored) bool { return r.GetId() == id }) ||
		slices.ContainsFunc(c.machine.Runs(), func(r *rowraftv1.MetaRun) bool { return r.GetCheckpoint() == id })
}

// logForgotten logs that a checkpoint of a policy is deleted, if made is not empty, and the error of the retention.
func (c *Service) logForgotten(ctx context.Context, name, made string, why error) error {
	return c.lead.Propose(ctx,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_ForgetCheckpoint{
			ForgetCheckpoint: &rowraftv1.MetaForgetCheckpoint{
				Name: name, Checkpoint: made, Error: failureText(why),
			}}})
}
