package scoring

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/rowraft/rowraft/cmd/rowraft-bench/figures"
	servingv1 "github.com/rowraft/rowraft/proto/rowraft/serving/v1"
)

// requestsOf divides a file with a header into requests of n lines, each with the header.
func requestsOf(text string, n int) (out []string) {
	header, rest, _ := strings.Cut(text, "\n")
	all := strings.SplitAfter(strings.TrimSuffix(rest, "\n"), "\n")
	for ; len(all) >= n; all = all[n:] {
		out = append(out, header+"\n"+strings.Join(all[:n], ""))
	}
	return out
}

// asJSON returns a request of lines as JSON.
func asJSON(request string) []byte {
	var examples []map[string]string
	var names []string
	for line := range strings.Lines(request) {
		values := strings.Split(strings.TrimSuffix(line, "\n"), ",")
		if names == nil {
			names = values
			continue
		}
		e := make(map[string]string, len(names))
		for i, name := range names {
			e[name] = values[i]
		}
		examples = append(examples, e)
	}
	text, _ := json.Marshal(map[string]any{"examples": examples}) // it has only texts
	return text
}

// way is one way to ask.
type way struct {
	name string
	ask  func(ctx context.Context, i int) error
	next atomic.Int64 // request
}

func newWays(httpAddr, grpcAddr string, requests []string) ([]*way, error) {
	web := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024}}
	var texts [][]byte
	for _, r := range requests {
		texts = append(texts, asJSON(r))
	}
	post := func(ctx context.Context, kind string, body io.Reader) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+httpAddr+"/v1/score", body)
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", kind)
		resp, err := web.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", resp.Status, text)
		}
		return err
	}
	conn, err := grpc.NewClient(grpcAddr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	stub := servingv1.NewScoringClient(conn)
	return []*way{
		{name: "HTTP, JSON", ask: func(ctx context.Context, i int) error {
			return post(ctx, "application/json", bytes.NewReader(texts[i%len(texts)]))
		}},
		{name: "HTTP, CSV", ask: func(ctx context.Context, i int) error {
			return post(ctx, "text/csv", strings.NewReader(requests[i%len(requests)]))
		}},
		{name: "gRPC, lines", ask: func(ctx context.Context, i int) error {
			_, err := stub.Score(ctx, &servingv1.ScoreRequest{Lines: []byte(requests[i%len(requests)])})
			return err
		}},
	}, nil
}

// await waits until the server answers.
func (w *way) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := w.ask(ctx, 0)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("rowraft-trainer serve does not answer: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// measured is the result of one part.
type measured struct {
	mu       sync.Mutex
	times    *hdrhistogram.Histogram // microseconds
	answered int
	failed   int
	seconds  float64
}

func newMeasured() *measured { return &measured{times: hdrhistogram.New(1, 60_000_000, 3)} }

// done counts a request that was due at a moment.
func (m *measured) done(due time.Time, err error) {
	took := time.Since(due).Microseconds()
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.failed++
		return
	}
	m.answered++
	_ = m.times.RecordValue(max(took, 1))
}

func (m *measured) print(p *figures.Printer, what string) {
	ms := func(us int64) float64 { return float64(us) / 1000 }
	p.Add(figures.Free(what+"p50", ms(m.times.ValueAtQuantile(50)), "ms"))
	p.Add(figures.Free(what+"p99", ms(m.times.ValueAtQuantile(99)), "ms"))
	p.Add(figures.Free(what+"max", ms(m.times.Max()), "ms"))
	p.Add(figures.Exactly(what+"failed", float64(m.failed), "requests", 0))
}

// atRate sends requests at their times.
func (w *way) atRate(ctx context.Context, rate float64, d time.Duration) (*measured, error) {
	m, begun := newMeasured(), time.Now()
	var all sync.WaitGroup
	for i := range int(rate * d.Seconds()) {
		due := begun.Add(time.Duration(float64(i) / rate * float64(time.Second)))
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Until(due)):
		}
		all.Go(func() { m.done(due, w.ask(ctx, int(w.next.Add(1)))) })
	}
	all.Wait()
	m.seconds = time.Since(begun).Seconds()
	return m, ctx.Err()
}

// saturate has conns callers, each with one request after the other.
func (w *way) saturate(ctx context.Context, conns int, d time.Duration) (*measured, error) {
	m, begun := newMeasured(), time.Now()
	var all sync.WaitGroup
	for range conns {
		all.Go(func() {
			for time.Since(begun) < d && ctx.Err() == nil {
				due := time.Now()
				m.done(due, w.ask(ctx, int(w.next.Add(1))))
			}
		})
	}
	all.Wait()
	m.seconds = time.Since(begun).Seconds()
	return m, ctx.Err()
}
