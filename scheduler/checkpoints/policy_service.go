package checkpoints

import (
	"context"
	"fmt"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/diagnosis"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// States of a policy in PolicyStatus.
const (
	policyWaiting = "waiting"
	policyRunning = "running"
	policyFailing = "failing"
	policyIdle    = diagnosis.PolicyIdle
)

// SetPolicy creates or changes a checkpoint policy.
func (c *Service) SetPolicy(ctx context.Context, req *rowraftv1.SetPolicyRequest) (*rowraftv1.SetPolicyReply, error) {
	p := req.GetPolicy()
	if err := meta.CheckPolicy(p); err != nil {
		return nil, err
	}
	d, err := depot.Open(p.GetDestination())
	if err != nil {
		return nil, err
	}
	p.Destination, p.Owner = d.String(), ""
	caller := rpc.CallerOf(ctx)
	if !runsCluster(caller) {
		p.Owner = caller.Name
	}
	if err := c.lead.InSync(ctx); err != nil { // an old state may have an old owner
		return nil, err
	}
	if err := c.maySet(ctx, caller, p); err != nil {
		return nil, err
	}
	err = c.lead.Propose(ctx,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_SetPolicy{SetPolicy: &rowraftv1.MetaSetPolicy{Policy: p}}})
	if err != nil {
		return nil, err
	}
	st, err := c.policyNamed(p.GetName())
	return &rowraftv1.SetPolicyReply{Policy: st}, err
}

// ListPolicies returns all policies and their records.
func (c *Service) ListPolicies(ctx context.Context,
	_ *rowraftv1.ListPoliciesRequest) (*rowraftv1.ListPoliciesReply, error) {
	if err := c.lead.InSync(ctx); err != nil {
		return nil, err
	}
	return &rowraftv1.ListPoliciesReply{Policies: c.PolicyStatuses()}, nil
}

// PolicyStatuses returns all policies and their records as this member knows them.
func (c *Service) PolicyStatuses() (out []*rowraftv1.PolicyStatus) {
	for _, p := range c.machine.Policies() {
		out = append(out, c.policyStatus(p))
	}
	return out
}

// DeletePolicy deletes a policy. Its checkpoints stay.
func (c *Service) DeletePolicy(ctx context.Context,
	req *rowraftv1.DeletePolicyRequest) (*rowraftv1.DeletePolicyReply, error) {
	if err := c.lead.InSync(ctx); err != nil {
		return nil, err
	}
	st, err := c.policyNamed(req.GetName())
	if err != nil {
		return nil, err
	}
	if err := c.mayChange(rpc.CallerOf(ctx), req.GetName()); err != nil {
		return nil, err
	}
	return &rowraftv1.DeletePolicyReply{Policy: st}, c.lead.Propose(ctx,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_DeletePolicy{
			DeletePolicy: &rowraftv1.MetaDeletePolicy{Name: req.GetName()}}})
}

// RunPolicy makes the next checkpoint of a policy now. A trainer may run its own policies.
func (c *Service) RunPolicy(ctx context.Context, req *rowraftv1.RunPolicyRequest) (*rowraftv1.RunPolicyReply, error) {
	if err := c.lead.InSync(ctx); err != nil {
		return nil, err
	}
	if err := c.mayChange(rpc.CallerOf(ctx), req.GetName()); err != nil {
		return nil, err
	}
	if err := c.runPolicyNow(ctx, req.GetName()); err != nil {
		return nil, fmt.Errorf("checkpoint policy %s: %w", req.GetName(), err)
	}
	st, err := c.policyNamed(req.GetName())
	return &rowraftv1.RunPolicyReply{Policy: st}, err
}

func (c *Service) policyNamed(name string) (*rowraftv1.PolicyStatus, error) {
	p := c.machine.PolicyOf(name)
	if p == nil {
		return nil, rowraft.Errorf(rowraft.CodeNotFound, "there is no checkpoint policy %q", name)
	}
	return c.policyStatus(p), nil
}

func (c *Service) policyStatus(p *meta.Policy) *rowraftv1.PolicyStatus {
	st := &rowraftv1.PolicyStatus{Policy: p.GetPolicy(), Record: p.GetRecord(), State: policyWaiting}
	next, ok := c.due(p, time.Now())
	switch {
	case p.GetRecord().GetRunning() != "":
		st.State = policyRunning
	case p.GetRecord().GetFailures() > 0:
		st.State = policyFailing
	case !ok:
		st.State = policyIdle
	}
	if ok {
		st.NextNs = uint64(next.UnixNano())
	}
	return st
}
