package member

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft/client/jobs"
)

// A worker that finds its job done without it waits a while for other workers that start the job again, and then
// takes part. A worker that was lost from the run itself does not wait.
func TestALateWorkerWaitsForAJobThatRestarts(t *testing.T) {
	const lease = 10 * time.Second
	other := errors.New("another error")
	for name, tc := range map[string]struct {
		again  bool
		after  time.Duration // when the others begin; 0: never
		err    error         // if they do not
		takes  time.Duration // at least
		member bool
	}{
		"others begin it a moment later": {after: 3 * time.Second, err: jobs.ErrDone, takes: 3 * time.Second,
			member: true},
		"no worker starts it":             {err: jobs.ErrDone, takes: lease},
		"it was lost from this very run":  {again: true, after: 3 * time.Second, err: jobs.ErrDone},
		"it is refused for another cause": {after: 3 * time.Second, err: other},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, tries, member := time.Now(), 0, &jobs.Member{}
				m, err := Enter(t.Context(), lease, tc.again, func(context.Context) (*jobs.Member, error) {
					if tries++; tc.after > 0 && time.Since(began) >= tc.after {
						return member, nil
					}
					return nil, tc.err
				})
				if took := time.Since(began); took < tc.takes || took > tc.takes+restartPoll {
					t.Errorf("it took %v and %d tries, want %v", took, tries, tc.takes)
				}
				if tc.member != (m == member) || tc.member == errors.Is(err, tc.err) {
					t.Errorf("it is member %p, %v", m, err)
				}
			})
		})
	}
}
