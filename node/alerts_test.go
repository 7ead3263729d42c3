package node

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/testutil"
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

// exported returns the names of the metrics that a server with certificates exports.
func exported(t *testing.T) []string {
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
	names := make(map[string]bool)
	testutil.Eventually(t, "a leader tells of its members, and rows are told", func() bool {
		for _, n := range c.nodes {
			_, text := opsGet(t, n.opsAddr, source, "/metrics")
			for line := range strings.Lines(text) {
				if name, _, found := strings.Cut(strings.TrimPrefix(line, "# TYPE "), " "); found &&
					strings.HasPrefix(line, "# TYPE ") {
					names[name] = true
				} else if name := metricIn.FindString(line); !strings.HasPrefix(line, "#") && name != "" {
					names[name] = true
				}
			}
		}
		return names["rowraft_raft_member_lag_entries"] && names["rowraft_table_rows"]
	})
	var out []string
	for name := range names {
		out = append(out, name)
	}
	return out
}

// TestAlertsAndDashboards: servers export every metric of a rule or panel, and every rule says what to do
// and names a section of the runbooks.
func TestAlertsAndDashboards(t *testing.T) {
	names := exported(t)
	check := func(what, expr string) {
		found := metricIn.FindAllString(expr, -1)
		if len(found) == 0 && !strings.Contains(expr, "up{") {
			t.Errorf("%s asks for no metric: %s", what, expr)
		}
		for _, m := range found {
			if !slices.Contains(names, m) {
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
	if len(rules) < 20 || len(panels) < 20 {
		t.Errorf("%d rules and %d panels were read", len(rules), len(panels))
	}
}
