package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/identity"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/node/replica"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler"
)

// alertRule is one rule of deploy/prometheus/alerts.yaml.
type alertRule struct {
	Alert, Expr, For string
	Labels           struct{ Severity string }
	Annotations      struct{ Summary, Action, Runbook string }
}

func alertRules(t *testing.T) (rules []alertRule) {
	t.Helper()
	raw, err := os.ReadFile("../deploy/prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Groups []struct{ Rules []alertRule } }
	if err := yaml.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		rules = append(rules, g.Rules...)
	}
	return rules
}

// dashboardExprs returns the queries of deploy/grafana/rowraft.json by panel.
func dashboardExprs(t *testing.T) map[string]string {
	t.Helper()
	raw, err := os.ReadFile("../deploy/grafana/rowraft.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Panels []struct {
			Title   string
			Type    string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	out := make(map[string]string)
	for _, p := range file.Panels {
		for _, target := range p.Targets {
			out[p.Title] += target.Expr + "\n"
		}
		if p.Type != "row" && out[p.Title] == "" {
			t.Errorf("panel %q shows nothing", p.Title)
		}
	}
	return out
}

// metricIn finds the metrics that a query names; `up` is a metric of Prometheus itself.
var metricIn = regexp.MustCompile(`\b(?:rowraft|process|go)_[a-z0-9_]+`)

// exported returns the metrics that the servers of a cluster with certificates export, with their types: after a push,
// while a job trains, and with a checkpoint policy.
func exported(t *testing.T) map[string]string {
	t.Helper()
	c, ctx := startSecureCluster(t, 3, nil), testutil.Context(t)
	admin := c.lab.files(certs.Admin, "ann")
	source, err := admin.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	cl := c.dialWith(client.Options{TLS: admin})
	table, err := cl.CreateTable(ctx, counterSchema("clicks"), false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.Push(ctx, []rowraft.Key{1}, make([]float32, 4)); err != nil {
		t.Fatal(err)
	}
	trains(t, c.dialWith(client.Options{TLS: admin}))
	set := &rowraftv1.SetPolicyRequest{Policy: &rowraftv1.CheckpointPolicy{Name: "nightly", Destination: t.TempDir(),
		EveryNs: 1e9, Keep: 1}}
	testutil.Eventually(t, "a policy is set", func() bool {
		for _, n := range c.nodes {
			conn := c.connectAs(n.addr, certs.Admin, "ann")
			if _, err := rowraftv1.NewCheckpointsClient(conn).SetPolicy(ctx, set); err == nil {
				return true
			}
		}
		return false
	})
	types := make(map[string]string)
	testutil.Eventually(t, "a leader reports its members, the scheduler a job and a checkpoint", func() bool {
		for _, n := range c.nodes {
			_, text := opsGet(t, n.opsAddr, source, "/metrics")
			for line := range strings.Lines(text) {
				if name, kind, found := strings.Cut(strings.TrimPrefix(line, "# TYPE "), " "); found &&
					strings.HasPrefix(line, "# TYPE ") {
					types[name] = strings.TrimSpace(kind)
				}
			}
		}
		for _, late := range []string{"raft_member_lag_entries", "table_rows", "job_step", "checkpoint_last_bytes"} {
			if types["rowraft_"+late] == "" {
				return false
			}
		}
		return true
	})
	return types
}

// trains makes cl a worker that trains until the test ends.
func trains(t *testing.T, cl *client.Client) {
	t.Helper()
	ctx := testutil.Context(t)
	m, err := jobs.Enter(ctx, cl, jobs.Entry{Job: "ctr", Worker: "w", Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	at, err := m.Register(ctx, jobs.Registration{
		Pause: func(context.Context, jobs.Agree) (*jobs.Paused, error) {
			write := func(w io.Writer) error { _, err := io.WriteString(w, "state"); return err }
			return &jobs.Paused{Step: 1, Size: 5, Write: write, Release: func() {}}, nil
		},
		Beat: func() jobs.Beat {
			return jobs.Beat{Step: 7, Examples: 700, Loss: 0.5, AUC: 0.7, ExamplesPerSecond: 100}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { at.Close() })
}

// base returns the name of the metric to which a sample of a histogram belongs.
func base(sample string, types map[string]string) string {
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if name, ok := strings.CutSuffix(sample, suffix); ok && types[name] == "histogram" {
			return name
		}
	}
	return sample
}

// TestAlertsAndDashboards: servers export every metric of a rule or panel, and every rule says what to do
// and names a section of the runbooks.
func TestAlertsAndDashboards(t *testing.T) {
	names := exported(t)
	checkMetricsPage(t, names)
	check := func(what, expr string) {
		found := metricIn.FindAllString(expr, -1)
		if len(found) == 0 && !strings.Contains(expr, "up{") {
			t.Errorf("%s asks for no metric: %s", what, expr)
		}
		for _, m := range found {
			if names[base(m, names)] == "" {
				t.Errorf("%s: no server exports %s", what, m)
			}
		}
	}
	page, err := os.ReadFile("../docs/ops/runbooks.md")
	if err != nil {
		t.Fatal(err)
	}
	var anchors []string
	for line := range strings.Lines(string(page)) {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			anchors = append(anchors, "docs/ops/runbooks.md#"+strings.ReplaceAll(strings.ToLower(strings.TrimSpace(title)), " ",
				"-"))
		}
	}
	rules := alertRules(t)
	for _, r := range rules {
		check(r.Alert, r.Expr)
		if a := r.Annotations; a.Summary == "" || a.Action == "" || !slices.Contains(anchors, a.Runbook) {
			t.Errorf("%s: %+v; want what is wrong, what to do, and one of %v", r.Alert, a, anchors)
		}
		if !slices.Contains([]string{"warning", "critical"}, r.Labels.Severity) || r.For == "" {
			t.Errorf("%s: severity %q, for %q", r.Alert, r.Labels.Severity, r.For)
		}
	}
	panels := dashboardExprs(t)
	for title, expr := range panels {
		check(title, expr)
	}
	if len(rules) < 30 || len(panels) < 50 {
		t.Errorf("%d rules and %d panels were read", len(rules), len(panels))
	}
}

// descPattern is the text of a prometheus.Desc.
var descPattern = regexp.MustCompile(
	`^Desc\{fqName: "(rowraft_\w+)", help: "(.*)", unit: ".*", constLabels: \{\}, variableLabels: \{(.*)\}\}$`)

// units are the units of metrics by the end of their names, the longer ends first.
var units = []struct{ suffix, unit string }{
	{"_timestamp_seconds", "Unix time, s"}, {"_seconds_total", "s"}, {"_examples_per_second", "examples/s"},
	{"_bytes_total", "bytes"}, {"_keys_total", "keys"}, {"_requests_total", "requests"}, {"_seconds", "s"},
	{"_bytes", "bytes"}, {"_entries", "entries"}, {"_index", "log index"}, {"_ratio", "0 to 1"}, {"_rows", "rows"},
	{"_steps", "steps"}, {"_info", "1"}, {"_loss", "nats"},
}

func unitOf(name string) string {
	for _, u := range units {
		if strings.HasSuffix(name, u.suffix) {
			return u.unit
		}
	}
	return "number"
}

// metricRows returns the table of docs/ops/metrics.md. types has the metrics that a server exports now; others, such as
// those of a table with admission, are gauges, or counters by their name.
func metricRows(t *testing.T, types map[string]string) (rows []string) {
	t.Helper()
	host := replica.New(replica.Options{})
	id, err := identity.Open(vfs.OS, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer id.Close()
	sched, err := scheduler.New(scheduler.Options{Identity: id})
	if err != nil {
		t.Fatal(err)
	}
	defer sched.Close()
	ch := make(chan *prometheus.Desc)
	go func() {
		defer close(ch)
		(&metrics{n: &Node{host: host, sched: sched}}).Describe(ch)
	}()
	known := make(map[string]bool)
	for d := range ch {
		found := descPattern.FindStringSubmatch(d.String())
		if found == nil {
			t.Fatalf("a metric is described as %v", d)
		}
		name, help, labels := found[1], strings.ReplaceAll(found[2], `\"`, `"`), found[3]
		kind := types[name]
		if kind == "" {
			t.Logf("%s was not exported", name)
			if kind = "gauge"; strings.HasSuffix(name, "_total") {
				kind = "counter"
			}
		}
		if kind == "counter" != strings.HasSuffix(name, "_total") {
			t.Errorf("%s is a %s: names of counters, and no others, end with _total", name, kind)
		}
		if labels != "" {
			labels = "`" + strings.ReplaceAll(labels, ",", "`, `") + "`"
		}
		known[name] = true
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s | %s |", name, labels, kind, unitOf(name), help))
	}
	for name := range types {
		if strings.HasPrefix(name, "rowraft_") && !known[name] {
			t.Errorf("a server exports %s and does not describe it", name)
		}
	}
	slices.Sort(rows)
	return rows
}

// checkMetricsPage compares the table of docs/ops/metrics.md with the metrics of a server. With UPDATE=1 it writes the
// table.
func checkMetricsPage(t *testing.T, types map[string]string) {
	t.Helper()
	const file, begin, end = "../docs/ops/metrics.md", "|---|---|---|---|---|\n", "\n\n"
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(raw), begin)
	have, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no table of metrics", file)
	}
	want := strings.Join(metricRows(t, types), "\n")
	if have == want {
		return
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(file, []byte(head+begin+want+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("%s does not list the metrics of a server: run UPDATE=1 go test ./node -run TestAlertsAndDashboards", file)
}

// TestPrometheusFiles: promtool accepts the alerts, their tests, and the configuration with certificates. Each alert
// has series with which it fires and series with which it does not.
func TestPrometheusFiles(t *testing.T) {
	const from = "../deploy/prometheus/"
	tests, err := os.ReadFile(from + "alerts_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range alertRules(t) {
		// Its series in the test in which it fires and in the one in which it does not, and the expectation.
		if n := strings.Count(string(tests), "# "+r.Alert+"\n"); n != 2 ||
			!strings.Contains(string(tests), fmt.Sprintf("alertname=%q", r.Alert)) {
			t.Errorf("alerts_test.yaml has %d sets of series for %s, want 2, and that it fires", n, r.Alert)
		}
	}
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("promtool is not installed: apt install prometheus")
		}
		t.Skip("promtool is not installed: apt install prometheus")
	}
	dir, files := t.TempDir(), newLab(t).files(certs.Reader, "prometheus", "no-table")
	put := func(to, from string) {
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, to), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "certs"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"alerts.yaml", "alerts_test.yaml", "prometheus.yaml", "servers.yaml", "trainers.yaml"} {
		put(name, from+name)
	}
	put("certs/ca.pem", files.CA)
	put("certs/client.pem", files.Cert)
	put("certs/client.key", files.Key)
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"},
		{"check", "config", "prometheus.yaml"}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}
