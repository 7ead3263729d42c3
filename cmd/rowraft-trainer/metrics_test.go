package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/trainer/report"
)

func scrape(t *testing.T, m *metrics) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	reply, err := client.Get("http://" + m.addr.String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil || reply.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v: %s", reply.Status, err, text)
	}
	return string(text)
}

func TestMetrics(t *testing.T) {
	m, err := listenMetrics("127.0.0.1:0", &rpc.TLSFiles{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	if text := scrape(t, m); strings.Contains(text, "rowraft_worker_") || !strings.Contains(text, "go_goroutines") {
		t.Errorf("before a run:\n%s", text)
	}
	m.setRun("ctr", func() report.Event {
		return report.Event{Rank: 3, Loss: 0.5, AUC: 0.75, Examples: 640, Step: 20, BatchesSkipped: 2, BatchesLate: 1,
			WaitingSeconds: 1.5, StalenessSteps: 2.5, StalenessMax: 9, InFlight: 4, PushesAcknowledged: 13,
			Copies: report.Copies{RowsReused: 60, RowsPulled: 40, BytesSaved: 1440, Evicted: 7, ReusedSteps: 3.5,
				ReusedSeconds: 0.25}}
	})
	text := scrape(t, m)
	for name, want := range map[string]string{
		"loss": "0.5", "auc": "0.75", "examples_total": "640", "steps_total": "20", "skipped_total": "2", "late_total": "1",
		"waiting_seconds_total": "1.5", "staleness_steps": "2.5", "staleness_max": "9",
		"cache_reused_rows_total": "60", "cache_pulled_rows_total": "40", "cache_saved_bytes_total": "1440",
		"cache_evicted_total": "7", "cache_age_steps": "3.5", "cache_age_seconds": "0.25",
		"in_flight": "4", "acknowledged_total": "13",
	} {
		line := "\nrowraft_worker_" + name + `{rank="3",training_job="ctr"} ` + want + "\n"
		if !strings.Contains(text, line) {
			t.Errorf("no line %s", line)
		}
	}
}

// A port that is taken is found before the worker enters its job.
func TestATakenPortIsFoundFirst(t *testing.T) {
	m, err := listenMetrics("127.0.0.1:0", &rpc.TLSFiles{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cmd := newJobCommandOf(new(options))
	cmd.SetArgs([]string{"--config", file(t, "taken.yaml", jobOf("taken", "")), "--insecure", "--progress", "none",
		"--endpoints", "127.0.0.1:1", "--metrics-listen", m.addr.String()}) // no server is there
	if err := cmd.ExecuteContext(ctx); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("with a taken port: %v", err)
	}
}
