package e2e

import (
	"encoding/json"
	"fmt"
)

// jobView is what `rowraft job describe -o json` says of a job.
type jobView struct {
	Run        string `json:"run"`
	State      string `json:"state"`
	Training   int    `json:"training"`
	Generation uint64 `json:"generation"`
	Data       *struct {
		Epoch   uint64   `json:"epoch"`
		Given   uint64   `json:"given"`
		Open    []uint64 `json:"open"`
		Back    []uint64 `json:"back"`
		AtLeast uint64   `json:"read_again_at_least"`
		AtMost  uint64   `json:"read_again_at_most"`
	} `json:"data"`
	Members []struct {
		Rank        int     `json:"rank"`
		Worker      string  `json:"worker"`
		State       string  `json:"state"`
		Reason      string  `json:"reason"`
		Incarnation uint64  `json:"incarnation"`
		Step        *uint64 `json:"step"`
	} `json:"members"`
}

// jobUntil describes a job until it is as wanted.
func (c *cluster) jobUntil(name, what string, ok func(jobView) bool) jobView {
	c.t.Helper()
	var v struct{ Job jobView }
	err := poll(deadline(c.t, patience), func() error {
		out, errout, code := c.rowraft(c.t.Context(), "job", "describe", name, "-o", "json")
		if code != 0 {
			return fmt.Errorf("exit code %d: %s", code, errout) // no worker has entered it yet
		}
		v.Job = jobView{}
		if err := json.Unmarshal([]byte(out), &v); err != nil || !ok(v.Job) {
			return fmt.Errorf("job %s is %+v, %v", name, v.Job, err)
		}
		return nil
	})
	if err != nil {
		c.t.Fatalf("%s: %v", what, err)
	}
	return v.Job
}

// member returns the state and step of a worker, "" if it has none.
func (v jobView) member(worker string) (state string, step uint64) {
	for _, m := range v.Members {
		if m.Worker == worker {
			if m.Step != nil {
				step = *m.Step
			}
			return m.State, step
		}
	}
	return "", 0
}

// rank of a worker, −1 if it has none.
func (v jobView) rank(worker string) int {
	for _, m := range v.Members {
		if m.Worker == worker {
			return m.Rank
		}
	}
	return -1
}

func (v jobView) incarnation(worker string) uint64 {
	for _, m := range v.Members {
		if m.Worker == worker {
			return m.Incarnation
		}
	}
	return 0
}
