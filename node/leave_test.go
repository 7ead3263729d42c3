package node

import (
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
)

// logLines collects the messages of a server's log.
type logLines struct {
	mu    sync.Mutex
	lines []string
}

func (l *logLines) Write(b []byte) (int, error) {
	var e struct{ Msg string }
	if err := json.Unmarshal(b, &e); err != nil {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, e.Msg)
	return len(b), nil
}

func (l *logLines) count(msg string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, line := range l.lines {
		if strings.HasPrefix(line, msg) {
			n++
		}
	}
	return n
}

// Servers stop one after the other and hand over their leaderships, so that no push waits for an election
// and none is lost. The first server leads a shard: at first each of the three leads one of the three
// shards.
func TestServersThatStopHandOver(t *testing.T) {
	logs := &logLines{}
	c := startClusterWith(t, 3, 3, func(cfg *Config) { cfg.Logger = slog.New(slog.NewJSONHandler(logs, nil)) })
	ctx := testutil.Context(t)
	table, err := c.dial().CreateTable(ctx, counterSchema("leave"), false)
	if err != nil {
		t.Fatal(err)
	}
	stopLoad := load(ctx, t, table)
	given, kept := 0, 0
	for given == 0 && ctx.Err() == nil { // on a busy machine, no server may take over in time
		for i := range c.nodes {
			c.stopNode(i)
			c.restart(i)
		}
		given, kept = logs.count("handed over the lead, to stop"), logs.count("stops as the leader")
	}
	pushed, gap := stopLoad()
	var row [4]float32
	if err := table.Pull(ctx, []rowraft.Key{7}, row[:]); err != nil || row[0] != float32(pushed) {
		t.Errorf("the row holds %v after %d acknowledged pushes (%v)", row[0], pushed, err)
	}
	t.Logf("%d pushes, the longest gap %v; %d leads handed over, %d not", pushed, gap, given, kept)
	if given == 0 {
		t.Errorf("no lead was handed over")
	}
}

// A server that was stopped on purpose is a warning that says so, also if it led the scheduler. A server that starts
// logs no warning without advice.
func TestAStopOnPurposeIsNamed(t *testing.T) {
	warnings := &logLines{}
	c := startClusterWith(t, 3, 1, func(cfg *Config) {
		cfg.Logger = slog.New(slog.NewJSONHandler(warnings, &slog.HandlerOptions{Level: slog.LevelWarn}))
	})
	ctx := testutil.Context(t)
	found := func(kind, text string) bool {
		for _, p := range c.status(ctx).GetFindings() {
			if p.GetKind() == kind && strings.Contains(p.GetText(), text) {
				return true
			}
		}
		return false
	}
	testutil.Eventually(t, "every server has reported and the shard has a leader", func() bool {
		return !found("not-reported", "") && !found("no-leader", "") && !found("replica-silent", "")
	})
	warnings.mu.Lock()
	for _, line := range warnings.lines {
		// The last two are of a machine that is busy with other tests.
		if !strings.HasPrefix(line, "INSECURE") && !strings.HasPrefix(line, "this process did not run") &&
			!strings.HasPrefix(line, "slow disk") {
			t.Errorf("a healthy start warns: %s", line)
		}
	}
	warnings.mu.Unlock()
	named := false
	for !named && ctx.Err() == nil { // on a busy machine, the notice of the stop may be too late
		leader := -1
		for i, n := range c.status(ctx).GetNodes() {
			if n.GetMetadataLeader() {
				leader = i
			}
		}
		if leader < 0 {
			continue
		}
		name := c.status(ctx).GetNodes()[leader].GetNode().GetName()
		at := slices.IndexFunc(c.nodes, func(n *testNode) bool { return n.cfg.Name == name })
		c.stopNode(at)
		testutil.Eventually(t, "the stopped server is missed", func() bool {
			named = found("server-stopped", "Server "+name+" was stopped on purpose at 20")
			return named || found("server-suspect", name) || found("server-down", name)
		})
		c.restart(at)
	}
	if !named {
		t.Errorf("no finding says that the server was stopped on purpose: %v", c.status(ctx).GetFindings())
	}
}
