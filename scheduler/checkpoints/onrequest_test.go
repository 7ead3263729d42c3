package checkpoints

import (
	"testing"
	"time"

	"github.com/rowraft/rowraft/scheduler/meta"
	"github.com/rowraft/rowraft/scheduler/metatest/metacmd"
)

// A checkpoint on request is not made again later: it would replace the best one by another.
func TestAPolicyOnRequestIsNotRetried(t *testing.T) {
	s, _, _ := newSolo(t, 0, nil)
	spec := metacmd.Nightly(t.TempDir(), 1)
	spec.EveryNs = uint64(meta.MaxPolicyEvery)
	if err := s.lead.Propose(t.Context(), metacmd.SetPolicy(spec, 1)); err != nil {
		t.Fatal(err)
	}
	err := s.runPolicyNow(t.Context(), "nightly") // fails: no shards
	p := s.machine.PolicyOf("nightly")
	next, ok := s.due(p, time.Now())
	t.Logf("run now: %v; failures %d; due in %v, %v", err, p.GetRecord().GetFailures(), time.Until(next), ok)
	if ok && time.Until(next) < time.Hour {
		t.Errorf("a policy on request runs by itself in %v", time.Until(next))
	}
}
