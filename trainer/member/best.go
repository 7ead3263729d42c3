package member

import (
	"context"

	"github.com/rowraft/rowraft/client/jobs"
)

// SaveBest makes a checkpoint of the best score and returns its place, DESTINATION/NAME. A policy of its own makes it,
// on request only, and keeps the last one: the retention of other policies deletes none of these. The scheduler logs
// the policy and its checkpoints, so they outlive its leader.
//
// saved is the checkpoint of the previous best score; "": there is none. If the newest checkpoint of the policy is
// another one, it may belong to a better score of an earlier run: the policy is begun again, and that checkpoint stays.
func (m *Membership) SaveBest(ctx context.Context, saved string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, stopPatience) // it must not keep a trainer that has ended for longer
	defer cancel()
	name := "best-" + m.Job[:min(len(m.Job), 55)]
	newest, found, err := jobs.NewestOf(ctx, m.client, name)
	if err == nil && found && newest != saved {
		err = jobs.DeletePolicy(ctx, m.client, name)
	}
	if err != nil {
		return "", err
	}
	conf := &m.Checkpoint
	err = jobs.SetPolicy(ctx, m.client, jobs.Policy{Name: name, Destination: conf.To, Every: jobs.OnRequest, Keep: 1,
		Job: m.Job, SkipAbsent: conf.SkipAbsent, FullEvery: conf.FullEvery, UntilDone: true})
	if err != nil {
		return "", err
	}
	return jobs.RunPolicy(ctx, m.client, name)
}
