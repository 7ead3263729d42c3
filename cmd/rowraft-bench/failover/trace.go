package failover

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rowraft/rowraft/internal/localcluster"
)

// The lines that servers and client log when the leadership of a shard changes.
const (
	logHandsOver = "transferring the leadership"
	logElected   = "is elected"
	logServes    = "leads the shard"
)

// gapEvent is a line of a log.
type gapEvent struct {
	At   float64 `json:"at_seconds"` // since the last acknowledgement
	Who  string  `json:"who"`        // the name of a server, or "client"
	What string  `json:"what"`
	More string  `json:"more,omitempty"`
}

func (e gapEvent) String() string {
	return strings.TrimRight(fmt.Sprintf("%+8.3f s  %-6s  %s  %s", e.At, e.Who, e.What, e.More), " ")
}

// trace reads the logs of a cluster's servers and of the client that pushes.
type trace struct {
	servers func() []*localcluster.Server

	mu     sync.Mutex
	from   map[string]int64 // log file → its size at the mark
	client bytes.Buffer     // JSON lines
}

func newTrace() *trace { return &trace{from: make(map[string]int64)} }

// logger returns the logger of the client.
func (t *trace) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(traceWriter(func(b []byte) (int, error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.client.Write(b)
	}), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type traceWriter func([]byte) (int, error)

func (f traceWriter) Write(b []byte) (int, error) { return f(b) }

// mark forgets all lines that were logged so far.
func (t *trace) mark() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.client.Reset()
	for _, s := range t.servers() {
		if info, err := os.Stat(s.LogFile); err == nil {
			t.from[s.LogFile] = info.Size()
		}
	}
}

// between returns the lines about a shard that were logged in a gap, after the mark.
func (t *trace) between(shard int, begin, end time.Time) ([]gapEvent, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := eventsIn(bytes.NewReader(t.client.Bytes()), "client", shard, begin, end)
	for _, s := range t.servers() {
		f, err := os.Open(s.LogFile)
		if err != nil {
			return nil, err
		}
		_, err = f.Seek(t.from[s.LogFile], io.SeekStart)
		if err == nil {
			out = append(out, eventsIn(f, s.Name, shard, begin, end)...)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(out, func(a, b gapEvent) int { return cmp.Compare(a.At, b.At) })
	return out, nil
}

// gapMargin is the time before and after a gap whose lines belong to the gap: the last push may
// be answered after the leader has lost the leadership.
const gapMargin = 10 * time.Millisecond

// eventsIn returns the lines about one shard, and the lines without a shard, from JSON lines.
func eventsIn(r io.Reader, who string, shard int, begin, end time.Time) (out []gapEvent) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var l struct {
			Time  time.Time
			Msg   string
			Shard *int
			Group string
			Took  string
			After string
			Err   string
			Code  string
			Node  string
			To    string
		}
		if json.Unmarshal(lines.Bytes(), &l) != nil || l.Time.Before(begin.Add(-gapMargin)) || l.Time.After(end) {
			continue
		}
		if l.Shard != nil && *l.Shard != shard || l.Group != "" && l.Group != fmt.Sprintf("shard-%d", shard) {
			continue
		}
		e := gapEvent{At: l.Time.Sub(begin).Seconds(), Who: who, What: l.Msg}
		if who == "client" {
			e.More = l.Node + " "
		}
		for _, more := range []string{l.Code, l.To, l.Took, l.After, l.Err} {
			if more != "" {
				e.More += more + " "
			}
		}
		e.More = strings.TrimSpace(e.More)
		out = append(out, e)
	}
	return out
}
