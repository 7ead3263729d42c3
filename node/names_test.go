package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
)

// syncBuffer is a buffer for concurrent use.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// TestAServerWithoutANameGetsOne: the scheduler names it, its metrics have the name, and its log has it from the first
// line after a restart.
func TestAServerWithoutANameGetsOne(t *testing.T) {
	var log syncBuffer
	c := startClusterWith(t, 1, 2, func(cfg *Config) {
		cfg.Name, cfg.Logger = "", slog.New(slog.NewJSONHandler(&log, nil))
	})
	text, err := c.scrape(0)
	if err != nil || !strings.Contains(text, `rowraft_ready{server="n1"} `) ||
		!strings.Contains(text, `rowraft_shard_leader{server="n1",shard="1"}`) {
		t.Errorf("the metrics do not name the server (%v):\n%s", err, text)
	}
	c.stopNode(0)
	before := len(log.String())
	c.restart(0)
	lines := strings.Split(strings.TrimSpace(log.String()[before:]), "\n")
	for _, line := range lines {
		var r struct{ Self string }
		if err := json.Unmarshal([]byte(line), &r); err != nil || r.Self != "n1" {
			t.Errorf("%v: not a line of n1: %s", err, line)
		}
	}
	if len(lines) < 3 {
		t.Errorf("%d lines", len(lines))
	}
}

// scrape returns the metrics of a server as Prometheus gets them.
func (c *testCluster) scrape(i int) (string, error) {
	resp, err := http.Get("http://" + c.nodes[i].opsAddr + "/metrics")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	_, err = b.ReadFrom(resp.Body)
	return b.String(), err
}

func TestLogLinesHaveNames(t *testing.T) {
	const a, b = "2bee7fc5-c8b2-4f33-a1ec-a30d12c28fb0", "17f39e8e-97eb-4789-afb4-a63e5ad81ba7"
	const replica = "c0ac9b63-1125-4908-b3bc-80002ddc3d3e"
	var m *clustermap.Map
	name := a
	var out bytes.Buffer
	log := slog.New(&nameHandler{next: slog.NewJSONHandler(&out, nil), self: func() string { return name },
		ids: func() *clustermap.Map { return m }}).With("replica", replica, "old", errors.New("of "+b))
	log.Info("before " + b)
	m = &clustermap.Map{Nodes: []clustermap.Node{{ID: b, Name: "n2"}},
		Shards: []clustermap.Shard{{Replicas: []clustermap.Replica{{ID: replica, Node: b}}}}}
	name = "n1"
	type server struct{ ID, Address rowraft.NodeID }
	cause := rowraft.Errorf(rowraft.CodeDenied, "refused by %s", b)
	log.Warn("dial server "+b, "err", cause, "peer", server{replica, b}, "leader", rowraft.NodeID(b),
		"addrs", []string{b, "x"}, "term", 7, "insecure", false)
	lines := strings.Split(out.String(), "\n")
	if !strings.Contains(lines[0], `"msg":"before `+b+`","self":"`+a+`","replica":"`+replica+`","old":"of `+b+`"`) {
		t.Errorf("without a map: %s", lines[0])
	}
	want := `"msg":"dial server n2","self":"n1","replica":"c0ac9b63@n2","old":"of n2","err":"refused by n2",` +
		`"peer":"{c0ac9b63@n2 n2}","leader":"n2","addrs":["n2","x"],"term":7,"insecure":false}`
	if !strings.Contains(lines[1], want) {
		t.Errorf("%s\nwant %s", lines[1], want)
	}
	if err := errWithNames(m, fmt.Errorf("call: %w", cause)); err.Error() != "call: refused by n2" ||
		rowraft.CodeOf(err) != rowraft.CodeDenied || errWithNames(m, nil) != nil {
		t.Errorf("%v, code %v", err, rowraft.CodeOf(err))
	}
}
