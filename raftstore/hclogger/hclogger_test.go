package hclogger

import (
	"bytes"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
)

// TestLevels: what raft says of elections and of peers that do not answer is no warning, and its own errors are.
func TestLevels(t *testing.T) {
	var out bytes.Buffer
	l := New(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo})), "raft", NewRate())
	l.Info("entering follower state")
	l.Warn("heartbeat timeout reached, starting election", "last-leader-id", "")
	l.Warn("heartbeat timeout reached, starting election", "last-leader-id", "") // within the pause
	l.Error("failed to make requestVote RPC", "error", io.EOF)
	l.Log(hclog.Error, "failed to take snapshot", "error", io.EOF)
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, regexp.MustCompile(`level=\w+`).FindString(line))
	}
	if want := []string{"level=INFO", "level=INFO", "level=WARN"}; !slices.Equal(got, want) {
		t.Errorf("levels %v, want %v:\n%s", got, want, out.String())
	}
}
