package node

import (
	"encoding/json"
	"log/slog"
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
