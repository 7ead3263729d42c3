package meta

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// Limits of checkpoint policies.
const (
	MaxPolicies        = 64
	maxPolicyName      = 60
	maxPoliciesOfOwner = MaxPolicies / 4 // of one trainer's name
	maxPolicyKeep      = 1000
	maxPolicyText      = 1024 // bytes of a destination, or of an error
	minPolicyEvery     = time.Second
	MaxPolicyEvery     = 366 * 24 * time.Hour
	maxPolicyRecords   = 2 * maxPolicyKeep // includes checkpoints that could not be deleted
)

// Policy is a checkpoint policy with its record. Both are immutable.
type Policy = rowraftv1.MetaPolicy

// policyList has the checkpoint policies, by name.
type policyList []*Policy

func (l policyList) find(name string) (int, bool) {
	return slices.BinarySearchFunc(l, name, func(p *Policy, name string) int {
		return cmp.Compare(p.GetPolicy().GetName(), name)
	})
}

func (l policyList) named(name string) (int, error) {
	i, found := l.find(name)
	if !found {
		return 0, rowraft.Errorf(rowraft.CodeNotFound, "there is no checkpoint policy %q", name)
	}
	return i, nil
}

// CheckPolicy refuses an invalid policy. Every member must get the same result.
func CheckPolicy(p *rowraftv1.CheckpointPolicy) error {
	bad := func(format string, args ...any) error {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "checkpoint policy %q: "+format,
			append([]any{p.GetName()}, args...)...)
	}
	every := time.Duration(p.GetEveryNs())
	switch {
	case depot.CheckName(p.GetName()) != nil || len(p.GetName()) > maxPolicyName:
		return bad("want a letter or digit, then up to %d letters, digits, '_', '.' or '-'", maxPolicyName-1)
	case len(p.GetDestination()) > maxPolicyText || p.GetDestination() == "":
		return bad("a destination of %d bytes, want 1 to %d", len(p.GetDestination()), maxPolicyText)
	case every < minPolicyEvery || every > MaxPolicyEvery:
		return bad("every %v: want %v to %v", every, minPolicyEvery, MaxPolicyEvery)
	case p.GetKeep() < 1 || p.GetKeep() > maxPolicyKeep:
		return bad("keep %d: want 1 to %d", p.GetKeep(), maxPolicyKeep)
	case time.Duration(p.GetKeepWithinNs()) < 0 || time.Duration(p.GetKeepWithinNs())/every > maxPolicyKeep:
		return bad("keep within %v: that would be more than %d checkpoints", time.Duration(p.GetKeepWithinNs()),
			maxPolicyKeep)
	case len(p.GetOwner()) > maxNameLength:
		return bad("an owner's name of %d bytes, want at most %d", len(p.GetOwner()), maxNameLength)
	case p.GetOwner() != "" && p.GetJob() == "":
		return bad("trainer %s owns it, and it names no job: want the job that the trainer trains", p.GetOwner())
	case p.GetUntilDone() && p.GetJob() == "":
		return bad("it ends with a run of its job, and names none")
	case len(p.GetJob()) > maxNameLength:
		return bad("a job's name of %d bytes, want at most %d", len(p.GetJob()), maxNameLength)
	case p.GetFullEvery() > checkpoint.MaxDeltas+1:
		return bad("a full one after %d: want at most %d", p.GetFullEvery(), checkpoint.MaxDeltas+1)
	}
	return nil
}

// set creates or changes a policy. The record stays if the destination stays.
func (l *policyList) set(c *rowraftv1.MetaSetPolicy, nowNs uint64) error {
	p := c.GetPolicy()
	if err := CheckPolicy(p); err != nil {
		return err
	}
	i, found := l.find(p.GetName())
	record := &rowraftv1.PolicyRecord{SetNs: nowNs}
	owns := func(q *Policy) bool { return q.GetPolicy().GetOwner() == p.GetOwner() }
	switch {
	case found && p.GetOwner() != "" && !owns((*l)[i]):
		return NotOwnerError((*l)[i].GetPolicy(), "trainer "+p.GetOwner())
	case found && (*l)[i].GetPolicy().GetDestination() == p.GetDestination():
		record = (*l)[i].GetRecord()
	// The record of a new destination begins empty, so the running checkpoint would be in no record and never be deleted.
	case found && (*l)[i].GetRecord().GetRunning() != "":
		return rowraft.Errorf(rowraft.CodeOverloaded,
			"checkpoint policy %s makes a checkpoint at the old destination just now", p.GetName())
	case !found && len(*l) >= MaxPolicies:
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"checkpoint policy %s: there are %d already, the limit; delete one first", p.GetName(), MaxPolicies)
	case !found && p.GetOwner() != "":
		n := 0
		for _, q := range *l {
			if owns(q) {
				n++
			}
		}
		if n >= maxPoliciesOfOwner {
			return rowraft.Errorf(rowraft.CodeInvalidArgument,
				"checkpoint policy %s: trainer %s owns %d already, the limit of one owner; delete one first", p.GetName(),
				p.GetOwner(), n)
		}
	}
	if !found {
		*l = slices.Insert(*l, i, nil)
	}
	(*l)[i] = &Policy{Policy: p, Record: record}
	return nil
}

func (l *policyList) remove(name string) error {
	i, err := l.named(name)
	if err != nil {
		return err
	}
	*l = slices.Delete(slices.Clone(*l), i, i+1)
	return nil
}

// endJob removes the policies that end with a run of the job.
func (l *policyList) endJob(job string) {
	*l = slices.DeleteFunc(slices.Clone(*l), func(p *Policy) bool {
		return p.GetPolicy().GetUntilDone() && p.GetPolicy().GetJob() == job
	})
}

// change replaces the record of a policy with a changed copy.
func (l policyList) change(name string, f func(*rowraftv1.CheckpointPolicy, *rowraftv1.PolicyRecord) error) error {
	i, err := l.named(name)
	if err != nil {
		return err
	}
	record := proto.CloneOf(l[i].GetRecord())
	if err := f(l[i].GetPolicy(), record); err != nil {
		return err
	}
	l[i] = &Policy{Policy: l[i].GetPolicy(), Record: record}
	return nil
}

func (l policyList) begin(c *rowraftv1.MetaBeginPolicyRun, nowNs uint64) error {
	return l.change(c.GetName(), func(_ *rowraftv1.CheckpointPolicy, r *rowraftv1.PolicyRecord) error {
		switch {
		case r.GetRunning() != "":
			return rowraft.Errorf(rowraft.CodeOverloaded, "checkpoint policy %s makes checkpoint %s just now", c.GetName(),
				r.GetRunning())
		case depot.CheckName(c.GetCheckpoint()) != nil:
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "checkpoint policy %s: checkpoint %q", c.GetName(),
				c.GetCheckpoint())
		// Without this limit a destination that lets nothing be deleted would make the state grow forever.
		case len(r.GetMade()) >= maxPolicyRecords:
			return rowraft.Errorf(rowraft.CodePrecondition,
				"checkpoint policy %s has %d checkpoints that could not be removed: %s", c.GetName(), len(r.GetMade()),
				r.GetRetentionError())
		}
		r.Running, r.BegunNs = c.GetCheckpoint(), nowNs
		return nil
	})
}

func (l policyList) end(c *rowraftv1.MetaEndPolicyRun) error {
	return l.change(c.GetName(), func(_ *rowraftv1.CheckpointPolicy, r *rowraftv1.PolicyRecord) error {
		// A leader that was replaced may still end its run. The next leader has ended that run, or has begun another one.
		if r.GetRunning() != c.GetCheckpoint() || c.GetCheckpoint() == "" {
			return rowraft.Errorf(rowraft.CodePrecondition, "checkpoint policy %s does not make checkpoint %q", c.GetName(),
				c.GetCheckpoint())
		}
		r.Running, r.Error = "", cut(c.GetError(), maxPolicyText)
		if c.GetError() != "" {
			r.Failures++
			return nil
		}
		r.Failures = 0
		r.Made = append(r.Made, &rowraftv1.PolicyCheckpoint{Name: c.GetCheckpoint(), BegunNs: r.GetBegunNs(),
			Delta: c.GetDelta()})
		return nil
	})
}

func (l policyList) forget(c *rowraftv1.MetaForgetCheckpoint) error {
	return l.change(c.GetName(), func(_ *rowraftv1.CheckpointPolicy, r *rowraftv1.PolicyRecord) error {
		r.RetentionError = cut(c.GetError(), maxPolicyText)
		if c.GetError() == "" {
			r.Made = slices.DeleteFunc(r.Made, func(m *rowraftv1.PolicyCheckpoint) bool {
				return m.GetName() == c.GetCheckpoint()
			})
		}
		return nil
	})
}

// load takes the policies of a snapshot and checks them.
func (l *policyList) load(p *rowraftv1.MetaState) error {
	*l = p.GetPolicies()
	for i, q := range *l {
		if err := CheckPolicy(q.GetPolicy()); err != nil {
			return err
		}
		if q.Record == nil {
			return fmt.Errorf("checkpoint policy %s has no record", q.GetPolicy().GetName())
		}
		if i > 0 && (*l)[i-1].GetPolicy().GetName() >= q.GetPolicy().GetName() {
			return fmt.Errorf("checkpoint policies are out of order")
		}
	}
	return nil
}

// Policies returns all policies by name.
func (m *Machine) Policies() []*Policy {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.state.policies)
}

// PolicyOf returns the policy of that name, nil if there is none.
func (m *Machine) PolicyOf(name string) *Policy {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i, found := m.state.policies.find(name); found {
		return m.state.policies[i]
	}
	return nil
}

// NotOwnerError returns the refusal for a caller that does not own the policy.
func NotOwnerError(p *rowraftv1.CheckpointPolicy, have string) error {
	owner := "those that run the cluster"
	if p.GetOwner() != "" {
		owner = "trainer " + p.GetOwner()
	}
	return &rowraft.DeniedError{What: "checkpoint policy " + p.GetName() + ", which " + owner + " set,",
		Need: "admin or operator, or its owner's name", Have: have}
}
