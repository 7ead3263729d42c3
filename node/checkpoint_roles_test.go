package node

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// checkpointLab is a server with certificates that lets trainers write checkpoints to allowed.
type checkpointLab struct {
	*testCluster
	ctx           context.Context
	allowed, evil string
}

func newCheckpointLab(t *testing.T) *checkpointLab {
	root := t.TempDir()
	l := &checkpointLab{ctx: testutil.Context(t), allowed: filepath.Join(root, "ckpt"),
		evil: filepath.Join(root, "ckpt-evil")}
	for _, dir := range []string{l.allowed, l.evil} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(l.evil, filepath.Join(l.allowed, "out")); err != nil {
		t.Fatal(err)
	}
	l.testCluster = startSecureCluster(t, 1, func(_ *lab, cfg *Config) {
		cfg.CheckpointDestinations = []string{l.allowed, "s3://models/ctr"}
	})
	admin := l.dialAs(certs.Admin, "ann")
	for _, name := range []string{"a_mine", "hers"} {
		if _, err := admin.CreateTable(l.ctx, counterSchema(name), false); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func (l *checkpointLab) stub(role certs.Role, name string, tables ...string) rowraftv1.CheckpointsClient {
	l.t.Helper()
	return rowraftv1.NewCheckpointsClient(l.connectAs(l.nodes[0].addr, role, name, tables...))
}

// nothingIn fails the test if a directory has an entry.
func (l *checkpointLab) nothingIn(dir string) {
	l.t.Helper()
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		l.t.Errorf("%s has %v, %v, want nothing", dir, entries, err)
	}
}

// TestCheckpointsOfACertificate is the matrix of callers and calls that write tables elsewhere or restore
// them.
func TestCheckpointsOfACertificate(t *testing.T) {
	l := newCheckpointLab(t)
	tricks := []string{
		"", "/", "relative", l.evil, filepath.Dir(l.allowed), l.allowed + "/../ckpt-evil/x", l.allowed + "/out", l.allowed +
			"/out/x", "file://" + l.allowed + "/out/x",
		"file://" + l.evil, "file://localhost" + l.allowed, strings.ToUpper(l.allowed), "s3://models/ctr-evil", "s3://models",
		"s3://models/CTR", "s3://models/ctr/../x", "s3://models//ctr", "S3://models/ctr",
	}
	spec := func(name, to, job string) *rowraftv1.SetPolicyRequest {
		return &rowraftv1.SetPolicyRequest{Policy: &rowraftv1.CheckpointPolicy{Name: name, Destination: to, EveryNs: 3600e9,
			Keep: 1, Job: job}}
	}
	for _, tc := range []struct {
		who          string
		stub         rowraftv1.CheckpointsClient
		create       bool // CreateCheckpoint, and policies of other owners
		restore      bool
		list         bool
		set, setEvil bool // a policy of job ctr, to an allowed destination and to another one
	}{
		{"an admin", l.stub(certs.Admin, "ann"), true, true, true, true, true},
		{"an operator", l.stub(certs.Operator, "olga"), true, false, true, true, true},
		{"a trainer of all tables", l.stub(certs.Trainer, "tom", "*"), false, false, true, true, false},
		{"a trainer of some tables", l.stub(certs.Trainer, "tim", "a_*"), false, false, true, false, false},
		{"a trainer of one table of two patterns", l.stub(certs.Trainer, "tim", "a_*", "hers"), false, false, true, false,
			false},
		{"a reader of all tables", l.stub(certs.Reader, "rob", "*"), false, false, false, false, false},
		{"a server", l.stub(certs.Server, "n2"), false, false, false, false, false},
	} {
		check := func(what string, allowed bool, err error) {
			t.Helper()
			if code := rowraft.CodeOf(rpc.FromStatus(err)); allowed && err != nil || !allowed && code != rowraft.CodeDenied {
				t.Errorf("%s %s: %v, want it allowed: %v", tc.who, what, err, allowed)
			}
		}
		name := strings.ReplaceAll(tc.who, " ", "-")
		stream, err := tc.stub.CreateCheckpoint(l.ctx,
			&rowraftv1.CreateCheckpointRequest{Destination: filepath.Dir(l.allowed) + "/by-hand", Name: name})
		check("creates a checkpoint", tc.create, drain(stream, err))
		back, err := tc.stub.RestoreCheckpoint(l.ctx,
			&rowraftv1.RestoreCheckpointRequest{Destination: filepath.Dir(l.allowed) + "/by-hand", Name: "an-admin",
				Replace: true})
		check("restores a checkpoint", tc.restore, drain(back, err))
		_, err = tc.stub.ListPolicies(l.ctx, &rowraftv1.ListPoliciesRequest{})
		check("lists policies", tc.list, err)
		_, err = tc.stub.SetPolicy(l.ctx, spec(name, l.allowed+"/"+name, "ctr"))
		check("sets a policy", tc.set, err)
		if tc.set {
			_, err = tc.stub.RunPolicy(l.ctx, &rowraftv1.RunPolicyRequest{Name: name})
			// The job has no trainer, so no checkpoint is made; but the call is allowed.
			check("runs its policy", true, unlessDenied(err))
		}
		_, err = tc.stub.RunPolicy(l.ctx, &rowraftv1.RunPolicyRequest{Name: "an-admin"})
		if tc.create {
			err = unlessDenied(err)
		}
		check("runs the policy of an admin", tc.create, err)
		_, err = tc.stub.SetPolicy(l.ctx, spec(name+"-evil", l.evil, "ctr"))
		check("sets a policy to another destination", tc.setEvil, err)
		if !tc.set {
			continue
		}
		_, err = tc.stub.SetPolicy(l.ctx, spec(name+"-all", l.allowed, ""))
		check("sets a policy for all jobs", tc.create, err)
		_, err = tc.stub.SetPolicy(l.ctx, spec("an-admin", l.allowed, "ctr"))
		check("changes the policy of an admin", tc.create, err)
		_, err = tc.stub.SetPolicy(l.ctx, spec(name, l.allowed+"/other", "ctr"))
		check("changes its own policy", true, err)
		if tc.create {
			continue
		}
		for _, to := range tricks {
			_, err := tc.stub.SetPolicy(l.ctx, spec(name, to, "ctr"))
			if code := rowraft.CodeOf(rpc.FromStatus(err)); code != rowraft.CodeDenied && code != rowraft.CodeInvalidArgument {
				t.Errorf("%s sets a policy to %q: %v", tc.who, to, err)
			}
		}
	}
	tom, tim, olga := l.stub(certs.Trainer, "tom", "*"), l.stub(certs.Trainer, "tim", "*"), l.stub(certs.Operator, "olga")
	for _, tc := range []struct {
		what    string
		stub    rowraftv1.CheckpointsClient
		policy  string
		refused bool
	}{
		{"a trainer deletes an admin's", tom, "an-admin", true},
		{"a trainer deletes another's", tim, "a-trainer-of-all-tables", true},
		{"a trainer deletes its own", tom, "a-trainer-of-all-tables", false},
		{"an operator deletes an admin's", olga, "an-admin", false},
	} {
		_, err := tc.stub.DeletePolicy(l.ctx, &rowraftv1.DeletePolicyRequest{Name: tc.policy})
		if denied := rowraft.CodeOf(rpc.FromStatus(err)) == rowraft.CodeDenied; denied != tc.refused || !tc.refused &&
			err != nil {
			t.Errorf("%s policy: %v", tc.what, err)
		}
	}
	l.nothingIn(l.evil)
}

func unlessDenied(err error) error {
	if rowraft.CodeOf(rpc.FromStatus(err)) == rowraft.CodeDenied {
		return err
	}
	return nil
}

// parks enters a job of one worker, attends and parks. It returns the checkpoint that was made.
func (l *checkpointLab) parks(cl *client.Client, job, to string, destinations ...string) (string, error) {
	l.t.Helper()
	m, err := jobs.Enter(l.ctx, cl, jobs.Entry{Job: job, Worker: "w", Workers: 1})
	if err != nil {
		return "", err
	}
	at, err := m.Register(l.ctx, jobs.Registration{Destinations: destinations,
		Pause: func(context.Context, jobs.Agree) (*jobs.Paused, error) {
			write := func(w io.Writer) error { _, err := io.WriteString(w, "state"); return err }
			return &jobs.Paused{Step: 1, Size: 5, Write: write, Release: func() {}}, nil
		}})
	if err != nil {
		return "", err
	}
	defer at.Close()
	return at.Park(l.ctx, jobs.Parking{Ended: true, Destination: to})
}

// TestParkingOfACertificate: a trainer that parks cannot have tables written that it may not read, nor
// write to a destination that is not allowed, whether or not it named the destination when it registered.
func TestParkingOfACertificate(t *testing.T) {
	l := newCheckpointLab(t)
	all, some := l.dialAs(certs.Trainer, "tom", "*"), l.dialAs(certs.Trainer, "tim", "a_*")
	for _, tc := range []struct {
		who  string
		cl   *client.Client
		to   string
		name string // that the error names
	}{
		{"limited", some, l.allowed, "trainer tim with the tables a_*"},
		{"limited-evil", some, l.evil, "trainer tim with the tables a_*"},
		{"evil", all, l.evil, "--checkpoint-destination"},
		{"above", all, filepath.Dir(l.allowed), l.allowed},
		{"dots", all, l.allowed + "/../ckpt-evil", "--checkpoint-destination"},
		{"link", all, l.allowed + "/out", "--checkpoint-destination"},
		{"file", all, "file://" + l.allowed + "/out", "--checkpoint-destination"},
		{"bucket", all, "s3://models/ctr-evil", "s3://models/ctr"},
	} {
		if made, err := l.parks(tc.cl, tc.who, tc.to); err == nil || !strings.Contains(err.Error(), tc.name) {
			t.Errorf("%s parks with a checkpoint in %s: made %q, %v, want an error that names %s", tc.who, tc.to, made, err,
				tc.name)
		}
		_, err := l.parks(tc.cl, tc.who+"-early", "", tc.to)
		if denied, ok := errors.AsType[*rowraft.DeniedError](err); !ok || !strings.Contains(denied.Error(), tc.name) {
			t.Errorf("%s names %s as it comes: %v, want Denied", tc.who, tc.to, err)
		}
	}
	if _, err := l.parks(all, "many", "", "/1", "/2", "/3", "/4", "/5", "/6", "/7", "/8",
		"/9"); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("9 destinations: %v", err)
	}
	l.nothingIn(l.evil)
	for _, tc := range []struct {
		cl *client.Client
		to string
	}{{all, l.allowed + "/tom"}, {l.dialAs(certs.Admin, "ann"), filepath.Dir(l.allowed) + "/anywhere"}} {
		made, err := l.parks(tc.cl, filepath.Base(tc.to), tc.to, tc.to)
		if err != nil || !strings.HasPrefix(made, tc.to+"/") {
			t.Errorf("a checkpoint in %s: %q, %v", tc.to, made, err)
		}
		if _, err := os.Stat(filepath.Join(made, "MANIFEST")); err != nil {
			t.Error(err)
		}
	}
}
