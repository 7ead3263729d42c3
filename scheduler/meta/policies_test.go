package meta

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/metatest/metacmd"
)

func cmdForgetMade(name, made, failure string) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_ForgetCheckpoint{
		ForgetCheckpoint: &rowraftv1.MetaForgetCheckpoint{Name: name, Checkpoint: made, Error: failure}}}
}

// One run after the other, each begun and ended in the log; a snapshot in between
// changes nothing.
func TestRunsOfAPolicy(t *testing.T) {
	m := withShards(t)
	index := rowraft.Index(10)
	step := func(what string, c *rowraftv1.MetaCommand, want rowraft.Code) {
		t.Helper()
		index++
		after := reloaded(t, m)
		for _, one := range []*Machine{m, after} {
			if err := applyTo(t, one, index, c); rowraft.CodeOf(err) != want {
				t.Errorf("%s: %v, want %v", what, err, want)
			}
		}
		if !bytes.Equal(snapshotBytes(t, m), snapshotBytes(t, after)) {
			t.Errorf("%s: another state after a snapshot", what)
		}
	}
	none := rowraft.CodeUnknown
	step("of a policy that is not", metacmd.BeginPolicyRun("nightly", "a", 1), rowraft.CodeNotFound)
	step("set", metacmd.SetPolicy(metacmd.Nightly("/mnt", 2), 5), none)
	step("ended before it began", metacmd.EndPolicyRun("nightly", "a", "", false), rowraft.CodePrecondition)
	step("begun", metacmd.BeginPolicyRun("nightly", "a", 6), none)
	step("a second one", metacmd.BeginPolicyRun("nightly", "b", 7), rowraft.CodeOverloaded)
	step("another destination meanwhile", metacmd.SetPolicy(metacmd.Nightly("/other", 2), 8), rowraft.CodeOverloaded)
	step("another interval", metacmd.SetPolicy(metacmd.Nightly("/mnt", 3), 8), none)
	step("another one ends", metacmd.EndPolicyRun("nightly", "b", "", false), rowraft.CodePrecondition)
	step("it ends", metacmd.EndPolicyRun("nightly", "a", "", false), none)
	step("again", metacmd.EndPolicyRun("nightly", "a", "", false), rowraft.CodePrecondition)
	for i, name := range []string{"b", "c"} {
		step("the next", metacmd.BeginPolicyRun("nightly", name, 10), none)
		step("it fails", metacmd.EndPolicyRun("nightly", name, strings.Repeat("disk full ", 500), false), none)
		r := m.PolicyOf("nightly").GetRecord()
		if r.GetFailures() != uint32(i+1) || len(r.GetError()) != maxPolicyText || r.GetRunning() != "" {
			t.Errorf("after %d failures: %d, an error of %d bytes, running %q", i+1, r.GetFailures(), len(r.GetError()),
				r.GetRunning())
		}
	}
	step("the next", metacmd.BeginPolicyRun("nightly", "d", 11), none)
	step("it succeeds", metacmd.EndPolicyRun("nightly", "d", "", true), none)
	p := m.PolicyOf("nightly")
	if got := madeNames(p); !slices.Equal(got, []string{"a", "d"}) || p.GetRecord().GetFailures() != 0 ||
		p.GetRecord().GetError() != "" || p.GetPolicy().GetKeep() != 3 || p.GetRecord().GetSetNs() != 5 {
		t.Errorf("%v", p)
	}
	step("one could not be removed", cmdForgetMade("nightly", "a", "no"), none)
	if p := m.PolicyOf("nightly"); p.GetRecord().GetRetentionError() != "no" || len(madeNames(p)) != 2 {
		t.Errorf("%v", p)
	}
	step("it is removed", cmdForgetMade("nightly", "a", ""), none)
	if p := m.PolicyOf("nightly"); p.GetRecord().GetRetentionError() != "" || !slices.Equal(madeNames(p), []string{"d"}) {
		t.Errorf("%v", p)
	}
	step("another destination", metacmd.SetPolicy(metacmd.Nightly("/other", 2), 20), none)
	if p := m.PolicyOf("nightly"); len(madeNames(p)) != 0 || p.GetRecord().GetSetNs() != 20 {
		t.Errorf("the record keeps checkpoints of the old destination: %v", p)
	}
	for what, change := range map[string]func(*rowraftv1.CheckpointPolicy){
		"no name":                func(p *rowraftv1.CheckpointPolicy) { p.Name = "" },
		"a name with /":          func(p *rowraftv1.CheckpointPolicy) { p.Name = "a/b" },
		"keep none":              func(p *rowraftv1.CheckpointPolicy) { p.Keep = 0 },
		"all the time":           func(p *rowraftv1.CheckpointPolicy) { p.EveryNs = 1 },
		"never":                  func(p *rowraftv1.CheckpointPolicy) { p.EveryNs = 1 << 63 },
		"nowhere":                func(p *rowraftv1.CheckpointPolicy) { p.Destination = "" },
		"keep too many":          func(p *rowraftv1.CheckpointPolicy) { p.KeepWithinNs = uint64(MaxPolicyEvery) },
		"endless deltas":         func(p *rowraftv1.CheckpointPolicy) { p.FullEvery = 1000 },
		"an owner without a job": func(p *rowraftv1.CheckpointPolicy) { p.Owner = "tom" },
		"a long owner":           func(p *rowraftv1.CheckpointPolicy) { p.Owner, p.Job = strings.Repeat("x", 200), "ctr" },
		"an impossible job":      func(p *rowraftv1.CheckpointPolicy) { p.Job = strings.Repeat("x", 200) },
	} {
		bad := metacmd.Nightly("/mnt", 2)
		change(bad)
		step(what, metacmd.SetPolicy(bad, 1), rowraft.CodeInvalidArgument)
	}
	of := func(owner, name string) *rowraftv1.MetaCommand {
		p := metacmd.Nightly("/mnt", 2)
		p.Name, p.Owner, p.Job = name, owner, "ctr"
		return metacmd.SetPolicy(p, 1)
	}
	step("a trainer takes that of an operator", of("tom", "nightly"), rowraft.CodeDenied)
	for i := range maxPoliciesOfOwner {
		step("a trainer sets its own", of("tom", fmt.Sprintf("tom-%d", i)), none)
	}
	step("a trainer changes its own", of("tom", "tom-0"), none)
	step("a trainer takes that of another", of("ann", "tom-0"), rowraft.CodeDenied)
	step("a trainer sets too many", of("tom", "tom-more"), rowraft.CodeInvalidArgument)
	step("another trainer sets one", of("ann", "ann-0"), none)
	step("an operator takes that of a trainer", of("", "ann-0"), none)
	del := &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_DeletePolicy{
		DeletePolicy: &rowraftv1.MetaDeletePolicy{Name: "nightly"}}}
	step("deleted", del, none)
	step("deleted again", del, rowraft.CodeNotFound)
}

// TestPoliciesEndWithTheRun that they are of, at once: a trainer that deleted one late would delete that of the next
// run.
func TestPoliciesEndWithTheRun(t *testing.T) {
	h := &history{t: t, m: withShards(t), index: 10}
	none := rowraft.CodeUnknown
	set := func(name, job string, untilDone bool) {
		p := metacmd.Nightly("/mnt", 2)
		p.Name, p.Job, p.UntilDone = name, job, untilDone
		h.step("a policy is set", metacmd.SetPolicy(p, 1), none)
	}
	names := func() (names []string) {
		for _, p := range h.m.Policies() {
			names = append(names, p.GetPolicy().GetName())
		}
		return names
	}
	first, second := h.enter("ctr", 0, 1), h.enter("ctr", 1, 2)
	set("job-ctr", "ctr", true)
	set("job-other", "other", true)
	set("mine", "ctr", false)
	h.step("one ends", metacmd.LeaveJob(first, ended), none)
	if got := names(); len(got) != 3 {
		t.Errorf("one worker trains: policies %v", got)
	}
	h.step("the other ends", metacmd.LeaveJob(second, ended), none)
	if got := names(); !slices.Equal(got, []string{"job-other", "mine"}) {
		t.Errorf("the run is done: policies %v", got)
	}
	h.enter("ctr", 0, 3)
	set("job-ctr", "ctr", true)
	h.step("a late call of the run before", metacmd.LeaveJob(second, ended), none)
	if got := names(); len(got) != 3 {
		t.Errorf("the next run trains: policies %v", got)
	}
	bad := metacmd.Nightly("/mnt", 2)
	bad.UntilDone = true
	h.step("of no job", metacmd.SetPolicy(bad, 1), rowraft.CodeInvalidArgument)
}

func TestGoldenBytesOfPolicies(t *testing.T) {
	spec := metacmd.Nightly("/mnt", 5)
	spec.Job, spec.Owner = "ctr", "tom"
	for name, c := range map[string]*rowraftv1.MetaCommand{"set_policy": metacmd.SetPolicy(spec, 7),
		"begin_policy_run": metacmd.BeginPolicyRun("nightly", "nightly-2", 9)} {
		goldenCommand(t, name, c)
	}
	m := goldenMachine(t, "policies")
	record := &rowraftv1.PolicyRecord{SetNs: 7, BegunNs: 9, Running: "nightly-2",
		Made: []*rowraftv1.PolicyCheckpoint{{Name: "nightly-1", BegunNs: 8}}, Error: "full", Failures: 1}
	if p := m.PolicyOf("nightly"); p == nil || !proto.Equal(p.GetPolicy(), spec) || !proto.Equal(p.GetRecord(), record) {
		t.Errorf("read: %v", p)
	}
}

func madeNames(p *Policy) (names []string) {
	for _, m := range p.GetRecord().GetMade() {
		names = append(names, m.GetName())
	}
	return names
}
