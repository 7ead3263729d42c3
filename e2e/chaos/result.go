package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/rowraft/rowraft/e2e/nemesis"
	"github.com/rowraft/rowraft/e2e/verdict"
)

// Config is what a run is made from; it is stored in the directory of the run. Zero values mean the defaults named.
type Config struct {
	Tier    string        `json:"tier"`    // A: virtual time, B: processes
	Seed    uint64        `json:"seed"`    // of the schedule of faults, and of the load
	For     time.Duration `json:"for_ns"`  // of faults: 1 min
	Faults  string        `json:"faults"`  // "all", or kinds separated by commas: "all"
	Clients int           `json:"clients"` // 4
	Rows    int           `json:"rows"`    // 8
	Servers int           `json:"servers"` // 3
	Shards  int           `json:"shards"`  // 2
	Slots   int           `json:"slots"`   // by the seed: 4096, 16384 or 65536
	Rate    int           `json:"rate"`    // calls a second of each client at most; 0: no limit
	Backend string        `json:"log_backend"`
	Profile string        `json:"profile"` // of the Raft timers: "fast"
	Version string        `json:"version"` // of the program that made the run

	Dir string `json:"-"` // empty directory for data, logs and history
	// Log receives each event as a line for a person, with its time in the run; may be nil.
	Log func(line string) `json:"-"`
	// Progress receives what has happened so far, several times a second while there are faults; may be nil.
	Progress func(elapsed time.Duration, text string) `json:"-"`
}

// SlotsOf returns the number of slots of the cluster of a run with this seed. One seed in two has the default number.
func SlotsOf(seed uint64) int { return [...]int{4096, 16384, 4096, 65536}[seed%4] }

func (c *Config) setDefaults() {
	c.For, c.Faults, c.Profile = cmp.Or(c.For, time.Minute), cmp.Or(c.Faults, "all"), cmp.Or(c.Profile, "fast")
	c.Clients, c.Rows, c.Servers, c.Shards = cmp.Or(c.Clients, 4), cmp.Or(c.Rows, 8), cmp.Or(c.Servers, 3),
		cmp.Or(c.Shards, 2)
	c.Slots = cmp.Or(c.Slots, SlotsOf(c.Seed))
	if c.Log == nil {
		c.Log = func(string) {}
	}
}

// Result is what a run has done and found.
type Result struct {
	Rounds   int                      `json:"rounds"`
	Faults   map[string]nemesis.Count `json:"faults"`
	Tried    int                      `json:"faults_tried"`
	Observed int                      `json:"faults_observed"`
	Pushes   int64                    `json:"pushes"`
	Acks     int64                    `json:"acks"`
	Pulls    int64                    `json:"pulls"`
	Reused   int64                    `json:"rows_from_copies"`
	Refused  int64                    `json:"refused"`
	Unknown  int64                    `json:"unknown"`
	Lost     int64                    `json:"updates_lost"`
	Doubled  int64                    `json:"updates_doubled"`
	Diverged int                      `json:"shards_diverged"`
	Terms    int                      `json:"terms"`
	Recovery Recovery                 `json:"after_heal"`
	Gap      float64                  `json:"longest_time_without_ack_seconds"`
	Checked  int                      `json:"operations_checked"`
	Verdicts []verdict.Verdict        `json:"checks"`
	Problems []string                 `json:"violations"`

	Took time.Duration `json:"-"` // on the clock of the run
}

// Recovery is the times from the end of the faults until the cluster works again.
type Recovery struct {
	FirstPush  Span `json:"first_push_of_shard"` // pushes that began after the heal, by shard
	AllClients Span `json:"push_of_every_client"`
	CatchUp    Span `json:"replicas_caught_up"`
	Serving    Span `json:"servers_serve"` // including killed servers
}

// Span is the distribution of a duration in seconds, over the rounds of a run.
type Span struct {
	N   int     `json:"n"`
	P50 float64 `json:"p50_seconds"`
	Max float64 `json:"max_seconds"`

	all []time.Duration
}

func (s *Span) add(ds ...time.Duration) {
	if s.all = append(s.all, ds...); len(s.all) == 0 {
		return
	}
	slices.Sort(s.all)
	s.N = len(s.all)
	s.P50, s.Max = s.all[s.N/2].Seconds(), s.all[s.N-1].Seconds()
}

func (s Span) String() string { return fmt.Sprintf("%.2f s, at most %.2f s", s.P50, s.Max) }

// Totals returns how many faults were tried, and how many had an effect.
func Totals(counts map[string]nemesis.Count) (tried, observed int) {
	for _, c := range counts {
		tried += c.Tried
		observed += c.Observed
	}
	return tried, observed
}
