//go:build cgo

package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// checkpointJSON is a checkpoint that was made.
type checkpointJSON struct {
	ID     string `json:"id"`
	Digest string `json:"digest"` // SHA-256 of the manifest, which has those of all files
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	Rows   uint64 `json:"rows"`
	HeldNs int64  `json:"held_ns"` // the longest that a push waited for the cut
	Note   string `json:"note"`
}

func newCheckpointJSON(m *checkpoint.Manifest, name, note string) (*checkpointJSON, error) {
	manifest, err := m.Encode()
	if err != nil {
		return nil, err
	}
	return &checkpointJSON{m.ID, fmt.Sprintf("%x", sha256.Sum256(manifest)), name, m.Bytes(), m.Rows(), int64(m.HeldFor),
		note}, nil
}

// createCheckpoint makes a checkpoint. A later leader of the scheduler continues under the same operation.
func createCheckpoint(ctx context.Context, s *session, q struct {
	Destination string `json:"destination"`
	Name        string `json:"name"` // "": from the time
	Delta       bool   `json:"delta"`
}) (any, error) {
	req := &rowraftv1.CreateCheckpointRequest{Destination: q.Destination, Name: q.Name, Delta: q.Delta,
		Operation: make([]byte, 16)}
	_, _ = rand.Read(req.Operation) // never fails (crypto/rand)
	if req.Name == "" {             // of all attempts
		req.Name = fmt.Sprintf("%s-%x", time.Now().UTC().Format("20060102T150405Z"), req.Operation[:2])
	}
	done, err := follow(ctx, s, func(ctx context.Context, stub rowraftv1.CheckpointsClient,
		attempt uint32) (receiver[*rowraftv1.CreateCheckpointReply], error) {
		if attempt == maxAttempts {
			return nil, rowraft.Errorf(rowraft.CodeInternal, "%d leaders of the scheduler were lost", attempt)
		}
		req.Attempt = attempt
		return stub.CreateCheckpoint(ctx, req)
	})
	if err != nil {
		return nil, fmt.Errorf("checkpoint to %s: %w", q.Destination, err)
	}
	m, err := checkpoint.ParseManifest(done.GetManifest())
	if err != nil {
		return nil, err
	}
	return newCheckpointJSON(m, done.GetName(), done.GetNote())
}

// restoreTables puts tables of a checkpoint, DESTINATION/NAME, in the place of the cluster's.
func restoreTables(ctx context.Context, s *session, path string, tables []string) error {
	destination, name, err := depot.Split(path)
	if err != nil {
		return err
	}
	restore := func(req *rowraftv1.RestoreCheckpointRequest) (*rowraftv1.RestoreCheckpointReply, error) {
		return follow(ctx, s, func(ctx context.Context, stub rowraftv1.CheckpointsClient,
			_ uint32) (receiver[*rowraftv1.RestoreCheckpointReply], error) {
			return stub.RestoreCheckpoint(ctx, req)
		})
	}
	plan, err := restore(&rowraftv1.RestoreCheckpointRequest{Destination: destination, Name: name, Tables: tables,
		Plan: true})
	if err != nil {
		return fmt.Errorf("restore %s: %w", path, err)
	}
	req := &rowraftv1.RestoreCheckpointRequest{Destination: destination, Name: name, Tables: tables, Replace: true,
		After: plan.GetDecided()} // no attempt is decided after another one
	for _, c := range plan.GetChanges() {
		if c.GetId() != 0 {
			req.Agreed = append(req.Agreed, c.GetId())
		}
	}
	if _, err := restore(req); err != nil {
		return fmt.Errorf("restore %s: %w", path, err)
	}
	return nil
}

type receiver[R any] interface{ Recv() (R, error) }

// maxAttempts is the number of attempts that a server accepts of one operation.
const maxAttempts = 64

// follow starts a call at the scheduler's leader and returns its last message. If the leader is lost, it starts the
// call again at the next one; start gets the number of the attempt, from 0.
func follow[R interface{ GetPhase() string }](ctx context.Context, s *session,
	start func(context.Context, rowraftv1.CheckpointsClient, uint32) (receiver[R], error)) (done R, err error) {
	err = untilLed(ctx, s, func(ctx context.Context, stub rowraftv1.CheckpointsClient, attempt uint32) error {
		stream, err := start(ctx, stub, attempt)
		if err != nil {
			return err
		}
		for ended := false; ; {
			reply, err := stream.Recv()
			switch {
			case errors.Is(err, io.EOF) && ended:
				return nil
			case errors.Is(err, io.EOF):
				return rowraft.Errorf(rowraft.CodeInternal, "the server ended the call without a result")
			case err != nil:
				return err
			}
			done, ended = reply, reply.GetPhase() == "done"
		}
	})
	return done, err
}

// untilLed makes a call that lasts, at one leader of the scheduler after the other, until one answers or ctx ends. call
// gets the number of leaders that may have begun it before.
func untilLed(ctx context.Context, s *session,
	call func(context.Context, rowraftv1.CheckpointsClient, uint32) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	control := s.client.Control()
	defer context.AfterFunc(control.Context(), cancel)()
	walk := control.Walk()
	for attempt := uint32(0); ; {
		conn, err := control.Conn(walk.Addr())
		if err == nil {
			err = rpc.FromStatus(call(ctx, rowraftv1.NewCheckpointsClient(conn), attempt))
		}
		if err == nil {
			return nil
		}
		if rowraft.CodeOf(err) == rowraft.CodeLeadershipLost || rpc.Broken(err) {
			attempt++ // a refusal begins nothing: while the scheduler elects, there are many
		}
		if !walk.Again(ctx, err) {
			return err
		}
	}
}

// The checkpoints of a job are those of a policy that runs on request only: the scheduler then knows them, and keeps
// the last ones.
const (
	policyNever = 366 * 24 * time.Hour // the longest interval of a policy
	policyKeep  = 5
)

// policyOf returns the name of the policy of a job.
func policyOf(job string) string { return "job-" + job[:min(len(job), 56)] }

// policies returns the policies of a job.
func policies(ctx context.Context, s *session, job string) (out []*rowraftv1.PolicyStatus, err error) {
	err = untilLed(ctx, s, func(ctx context.Context, stub rowraftv1.CheckpointsClient, _ uint32) error {
		r, err := stub.ListPolicies(ctx, &rowraftv1.ListPoliciesRequest{})
		out = slices.DeleteFunc(r.GetPolicies(), func(p *rowraftv1.PolicyStatus) bool {
			return p.GetPolicy().GetJob() != job
		})
		return err
	})
	return out, err
}

// checkpointJob makes a checkpoint of all tables with the states of all workers of a job.
func checkpointJob(ctx context.Context, s *session, q struct {
	Destination string `json:"destination"`
}) (any, error) {
	j, err := s.worker()
	if err != nil {
		return nil, err
	}
	d, err := depot.Open(q.Destination)
	if err != nil {
		return nil, err
	}
	name := policyOf(j.conf.Job)
	all, err := policies(ctx, s, j.conf.Job)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(all, func(p *rowraftv1.PolicyStatus) bool {
		return p.GetPolicy().GetName() == name && p.GetPolicy().GetDestination() == d.String()
	}) {
		if err := jobs.SetPolicy(ctx, s.client, jobs.Policy{Name: name, Destination: q.Destination, Every: policyNever,
			Keep: policyKeep, Job: j.conf.Job}); err != nil {
			return nil, err
		}
	}
	made := ""
	err = untilLed(ctx, s, func(ctx context.Context, stub rowraftv1.CheckpointsClient, _ uint32) error {
		r, err := stub.RunPolicy(ctx, &rowraftv1.RunPolicyRequest{Name: name})
		if list := r.GetPolicy().GetRecord().GetMade(); len(list) > 0 {
			made = list[len(list)-1].GetName()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("checkpoint to %s: %w", q.Destination, err)
	}
	m, err := checkpoint.ReadManifest(ctx, depot.At(d, made))
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s was made, but this worker cannot read it, which it must to resume: %w", made,
			err)
	}
	return newCheckpointJSON(m, made, "")
}

// jobCheckpoints returns the checkpoints of a job that its policies have made, DESTINATION/NAME, the newest first.
func jobCheckpoints(ctx context.Context, s *session, job string) (out []string, err error) {
	all, err := policies(ctx, s, job)
	if err != nil {
		return nil, err
	}
	begun := make(map[string]uint64)
	for _, p := range all {
		for _, c := range p.GetRecord().GetMade() {
			path := p.GetPolicy().GetDestination() + "/" + c.GetName()
			out, begun[path] = append(out, path), c.GetBegunNs()
		}
	}
	slices.SortFunc(out, func(a, b string) int {
		switch {
		case begun[a] > begun[b]:
			return -1
		case begun[a] < begun[b]:
			return 1
		}
		return 0
	})
	return out, nil
}
