package sim

import (
	"testing"
	"time"

	"github.com/rowraft/rowraft/e2e/chaos"
)

// scenarios are faults that attack one promise each, so that a developer who breaks it on purpose, or looks for a bug
// there, need not wait for all the others:
//
//	go test ./e2e/sim -run TestScenarios/power -sim.seed 7 -sim.for 2m
var scenarios = []struct{ name, faults string }{
	// Acknowledged pushes are on a majority of disks.
	{"power", "power-leader,power-follower,power-majority,power-all,power-step"},
	{"leaders", "kill-leader,partition-leader,isolate-leader,mute-leader,deaf-leader,transfer,transfer-cut"},
	{"disks",
		"disk-fail-leader,disk-fail-follower,disk-full,disk-full-leader,disk-hang-leader,disk-slow-follower,power-step,foreign-log,rolled-back"},
	// Slow disks make a cluster slow, and nothing else.
	{"slow-disks", "slow-disks,kill-leader,kill-follower,partition-leader,pause-leader,restart,transfer,install"},
	// Each counts once, also on who has it from a snapshot.
	{"retries", "retry-storm,client-mute,client-cut,reset-storm,kill-leader,install,zombie-client"},
	// A new client finds room, and what it pushes counts once.
	{"sessions", "session-flood,session-flood,zombie-client,kill-leader,client-mute"},
	{"snapshots", "install,kill-follower,power-follower,partition-follower,kill-all,delay"},
	// A read shows all that was acknowledged before it.
	{"reads", "stuck-leader,pause-leader,partition-leader,mute-leader,transfer-storm"},
	// Replication goes on when connections do not.
	{"network", "refuse,reset-storm,loss,delay,slow-link,bridge,deaf-follower,mute-follower"},
}

func TestScenarios(t *testing.T) {
	if raceEnabled {
		t.Skip("TestSeeds runs all of it")
	}
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			cfg := chaos.Config{Seed: *firstSeed, For: 20 * time.Second, Faults: s.faults, Servers: *servers}
			if *faultsFor != defaultFor {
				cfg.For = *faultsFor
			}
			runSeed(t, cfg)
		})
	}
}
