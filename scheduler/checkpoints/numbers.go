package checkpoints

import (
	"sync"
	"time"

	"github.com/rowraft/rowraft/internal/histogram"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// made counts the checkpoints that this server made.
type made struct {
	took, failed histogram.Durations

	mu    sync.Mutex
	at    time.Time // when the newest checkpoint was made; zero: none yet
	bytes uint64    // its size
}

// ended counts a checkpoint that began at begun. err is why it failed; nil if it exists.
func (m *made) ended(begun time.Time, bytes uint64, err error) {
	if err != nil {
		m.failed.Observe(time.Since(begun))
		return
	}
	m.took.Observe(time.Since(begun))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at, m.bytes = time.Now(), bytes
}

// Made describes the checkpoints that this server made since it started.
type Made struct {
	Took, Failed *histogram.Durations
	LastAt       time.Time // when the newest checkpoint was made; zero: none yet
	LastBytes    uint64    // its size
}

// Made returns the checkpoints that this server made since it started.
func (c *Service) Made() Made {
	m := &c.made
	m.mu.Lock()
	defer m.mu.Unlock()
	return Made{Took: &m.took, Failed: &m.failed, LastAt: m.at, LastBytes: m.bytes}
}

// Age returns the time since the newest checkpoint of a policy began or, without one, since the policy was set. ok is
// false while the policy makes none, because no trainer of its job is connected.
func (c *Service) Age(p *meta.Policy, now time.Time) (age time.Duration, ok bool) {
	if _, due := c.due(p, now); !due {
		return 0, false
	}
	last := p.GetRecord().GetSetNs()
	if made := p.GetRecord().GetMade(); len(made) > 0 {
		last = max(last, made[len(made)-1].GetBegunNs())
	}
	return max(now.Sub(time.Unix(0, int64(last))), 0), true
}
