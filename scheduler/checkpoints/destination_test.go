package checkpoints

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/metatest/metacmd"
)

func callerOf(role certs.Role, name string, tables ...string) *rpc.Caller {
	return &rpc.Caller{Identity: certs.Identity{Cluster: "lab", Role: role, Name: name, Tables: tables}}
}

// TestCheckpointsOfTrainers: no trainer has tables written that it may not read, nor to a place
// that the scheduler does not allow.
func TestCheckpointsOfTrainers(t *testing.T) {
	dir := t.TempDir()
	s, _, _ := newSolo(t, 0, nil)
	all, some := callerOf(certs.Trainer, "t", "*"), callerOf(certs.Trainer, "t", "a_*", "b")
	for _, tc := range []struct {
		name        string
		caller      *rpc.Caller
		allowed     []string
		destination string
		refused     []string // what the error names; nil: it is allowed
	}{
		{name: "plaintext", destination: "/anywhere"},
		{name: "an admin", caller: callerOf(certs.Admin, "a"), destination: "/anywhere"},
		{name: "an operator", caller: callerOf(certs.Operator, "o"), destination: "/anywhere"},
		{name: "a trainer, by default", caller: all, destination: dir, refused: []string{dir, "--checkpoint-destination",
			"none", "trainer t"}},
		{name: "a trainer of all tables", caller: all, allowed: []string{"s3://b/c", dir}, destination: dir + "/t"},
		{name: "a place next to it", caller: all, allowed: []string{"s3://b/c", dir}, destination: dir + "-evil",
			refused: []string{`"` + dir + `-evil"`, `"` + dir + `"`, `"s3://b/c"`, "--checkpoint-destination"}},
		{name: "a trainer of some", caller: some, allowed: []string{dir}, destination: dir,
			refused: []string{dir, "all tables", "a_*, b", "trainer t"}},
		{name: "a reader of all", caller: callerOf(certs.Reader, "r", "*"), allowed: nil, destination: dir,
			refused: []string{"reader r"}},
	} {
		s.destinations = tc.allowed
		err := s.CheckDestination(t.Context(), tc.caller, tc.destination)
		if (rowraft.CodeOf(err) == rowraft.CodeDenied) != (tc.refused != nil) || (err == nil) != (tc.refused == nil) {
			t.Errorf("%s: %v", tc.name, err)
		}
		for _, part := range tc.refused {
			if err != nil && !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q does not name %s", tc.name, err, part)
			}
		}
	}
}

// TestPoliciesHaveAnOwner: a trainer sets policies of its own job, and changes its own only.
func TestPoliciesHaveAnOwner(t *testing.T) {
	dir := t.TempDir()
	s, _, _ := newSolo(t, 0, nil)
	s.destinations = []string{dir}
	for _, p := range []*rowraftv1.CheckpointPolicy{metacmd.Nightly(dir, 2),
		{Name: "operators", Destination: dir, EveryNs: 1e9, Keep: 1}} {
		if p.Name == "nightly" {
			p.Owner, p.Job = "t", "ctr"
		}
		if err := s.lead.Propose(t.Context(), metacmd.SetPolicy(p, 1)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name    string
		caller  *rpc.Caller
		policy  string
		job     string
		refused bool
	}{
		{"plaintext", nil, "nightly", "", false},
		{"an operator", callerOf(certs.Operator, "o"), "nightly", "", false},
		{"its owner", callerOf(certs.Trainer, "t", "*"), "nightly", "ctr", false},
		{"its owner, for all jobs", callerOf(certs.Trainer, "t", "*"), "nightly", "", true},
		{"its owner with some tables", callerOf(certs.Trainer, "t", "a_*"), "nightly", "ctr", true},
		{"another trainer", callerOf(certs.Trainer, "u", "*"), "nightly", "ctr", true},
		{"a trainer, an operator's", callerOf(certs.Trainer, "t", "*"), "operators", "ctr", true},
		{"a trainer, a new one", callerOf(certs.Trainer, "u", "*"), "new", "ctr2", false},
	} {
		err := s.maySet(t.Context(), tc.caller, &rowraftv1.CheckpointPolicy{Name: tc.policy, Destination: dir, Job: tc.job})
		if (rowraft.CodeOf(err) == rowraft.CodeDenied) != tc.refused || (err != nil) != tc.refused {
			t.Errorf("%s: %v, want it refused: %v", tc.name, err, tc.refused)
		}
	}
	for name, tc := range map[string]struct {
		caller  *rpc.Caller
		refused bool
	}{
		"plaintext": {nil, false}, "an operator": {callerOf(certs.Operator, "o"), false},
		"its owner": {callerOf(certs.Trainer, "t", "a_*"), false}, "another": {callerOf(certs.Trainer, "u", "*"), true},
	} {
		if err := s.mayChange(tc.caller, "nightly"); (rowraft.CodeOf(err) == rowraft.CodeDenied) != tc.refused {
			t.Errorf("%s deletes it: %v", name, err)
		}
	}
}

// TestEachRunOfAPolicyIsCheckedAgain: a policy of a trainer runs while a trainer of its owner and
// job attends, all of them may read all tables, and the destination is allowed.
func TestEachRunOfAPolicyIsCheckedAgain(t *testing.T) {
	root := t.TempDir()
	dir, evil := filepath.Join(root, "ckpt"), filepath.Join(root, "evil")
	for _, d := range []string{dir, evil} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s, _, trainers := newSolo(t, 0, nil)
	p := metacmd.Nightly(dir+"/t", 2)
	p.Owner, p.Job = "t", "ctr"
	if err := s.lead.Propose(t.Context(), metacmd.SetPolicy(p, 1)); err != nil {
		t.Fatal(err)
	}
	attend := func(callers ...*rpc.Caller) { trainers.callers["ctr"] = callers }
	all, some := callerOf(certs.Trainer, "t", "*"), callerOf(certs.Trainer, "t", "a_*")
	run := func(name string, want rowraft.Code) {
		t.Helper()
		err := s.mayRun(t.Context(), s.machine.PolicyOf("nightly").GetPolicy())
		if rowraft.CodeOf(err) != want {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
		if want == rowraft.CodeUnknown {
			return
		}
		if _, err := s.makeFor(t.Context(), s.machine.PolicyOf("nightly"), "n"); rowraft.CodeOf(err) != want {
			t.Errorf("%s: the run says %v, want %v", name, err, want)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s: it left %v in the destination, %v", name, left, err)
		}
	}
	s.destinations = []string{dir}
	attend(all, all)
	run("allowed", rowraft.CodeUnknown)
	attend(all, some)
	run("one of its trainers has a new certificate with fewer tables", rowraft.CodeDenied)
	attend(callerOf(certs.Trainer, "u", "*"), callerOf(certs.Admin, "t2"), nil)
	run("the trainers are of others", rowraft.CodePrecondition)
	attend()
	run("no trainer attends", rowraft.CodePrecondition)
	attend(all)
	s.destinations = []string{evil}
	run("the servers were started with another destination", rowraft.CodeDenied)
	s.destinations = nil
	run("the servers were started without a destination", rowraft.CodeDenied)
	s.destinations = []string{dir}
	if err := os.Symlink(evil, dir+"/t"); err != nil {
		t.Fatal(err)
	}
	if err := s.mayRun(t.Context(), p); rowraft.CodeOf(err) != rowraft.CodeDenied {
		t.Errorf("the destination has become a link that leads out: %v, want Denied", err)
	}
}
