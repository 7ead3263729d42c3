package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/internal/rpc"
	servingv1 "github.com/rowraft/rowraft/proto/rowraft/serving/v1"
)

// served is a trained model, its lines, and what predict says of them.
type served struct {
	model  string
	header string
	lines  []string
	want   []float32
}

const servedSchema = `missing: ["?"]
label: {column: clicked}
dense:
  - {column: age, missing: -1}
  - {column: income, transform: log1p, standardize: true}
categorical:
  - {column: city}
  - {column: tags, separator: "|", weights: {column: scores}, pooling: mean, max_length: 2}
  - {column: item, table: items, dim: 4, ids: exact}
`

// trainServed trains a model on a log with missing values, exact ids and lists with weights, and predicts its lines.
func trainServed(t *testing.T, endpoints string, security ...string) *served {
	t.Helper()
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	s := &served{model: in("served.model"), header: "clicked,age,income,city,tags,scores,item\n"}
	for i := range 400 {
		age, tags, scores, item := fmt.Sprint(i%60), []string{}, []string{}, ""
		if i%11 == 0 {
			age = "?"
		}
		for k := range i % 4 {
			tags, scores = append(tags, fmt.Sprint("t", (i+k)%9)), append(scores, fmt.Sprint(float64(k+1)/7))
		}
		if i%5 > 0 {
			item = fmt.Sprint(uint64(i%17) * 1e15)
		}
		s.lines = append(s.lines, fmt.Sprintf("%d,%s,%d,c%d,%s,%s,%s\n", i%3/2, age, i*i%977-300, i%6,
			strings.Join(tags, "|"), strings.Join(scores, "|"), item))
	}
	for name, text := range map[string]string{"log.csv": s.header + strings.Join(s.lines, ""), "log.yaml": servedSchema,
		"job.yaml": "job: served\nbatch: 32\nmodel: {kind: deepfm, dim: 4, top: [8]}\n"} {
		if err := os.WriteFile(in(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) {
		t.Helper()
		p := spawn(t, "rowraft-trainer", slices.Concat(args, []string{"--endpoints", endpoints, "--device", "cpu"},
			security)...)
		if code := p.code(t, patience); code != 0 {
			t.Fatalf("%s: exit code %d: %s", args[0], code, &p.stderr)
		}
	}
	run("train", "--config", in("job.yaml"), "--data", in("log.csv"), "--schema", in("log.yaml"), "--save-model", s.model,
		"--progress", "none")
	run("predict", "--model", s.model, "--data", in("log.csv"), "--out", in("scores"), "--progress", "none")
	for line := range strings.Lines(string(mustRead(t, in("scores")))) {
		x, err := strconv.ParseFloat(strings.TrimSpace(line), 32)
		if err != nil {
			t.Fatal(err)
		}
		s.want = append(s.want, float32(x))
	}
	return s
}

// post sends a request and returns the predictions, or an error with the status.
func post(ctx context.Context, c *http.Client, url, kind, body string) ([]float32, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", kind)
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	var reply struct{ Predictions []float32 }
	if resp.StatusCode != http.StatusOK {
		return nil, statusError{resp.StatusCode, resp.Header.Get("Retry-After"), string(text)}
	}
	return reply.Predictions, json.Unmarshal(text, &reply)
}

type statusError struct {
	status           int
	retryAfter, text string
}

func (e statusError) Error() string { return fmt.Sprintf("%d: %s", e.status, e.text) }

// same compares the predictions of the lines from: with those of predict.
func (s *served) same(from int, got []float32, err error) error {
	if err != nil {
		return err
	}
	if !slices.Equal(got, s.want[from:from+len(got)]) || len(got) == 0 {
		return fmt.Errorf("the predictions from line %d on are %v, predict says %v", from, got, s.want[from:from+len(got)])
	}
	return nil
}

// examples returns lines as JSON and as messages.
func (s *served) examples(from, to int) (string, []*servingv1.Example) {
	names := strings.Split(strings.TrimSpace(s.header), ",")
	var out []map[string]any
	var messages []*servingv1.Example
	for _, line := range s.lines[from:to] {
		e, m := map[string]any{}, &servingv1.Example{Features: map[string]*servingv1.Feature{}}
		values := strings.Split(strings.TrimSpace(line), ",")
		for i, name := range names {
			if values[i] == "" || name == "scores" {
				continue
			}
			e[name], m.Features[name] = values[i], &servingv1.Feature{Texts: []string{values[i]}}
			switch name {
			case "income":
				e[name] = json.Number(values[i])
				x, _ := strconv.ParseFloat(values[i], 64)
				m.Features[name] = &servingv1.Feature{Numbers: []float64{x}}
			case "item":
				id, _ := strconv.ParseUint(values[i], 10, 64)
				e[name], m.Features[name] = id, &servingv1.Feature{Ids: []uint64{id}}
			case "tags":
				weights := strings.Split(values[i+1], "|")
				f, pairs := &servingv1.Feature{}, [][2]any{}
				for k, tag := range strings.Split(values[i], "|") {
					w, _ := strconv.ParseFloat(weights[k], 64)
					f.Texts, f.Weights = append(f.Texts, tag), append(f.Weights, w)
					pairs = append(pairs, [2]any{tag, json.Number(weights[k])})
				}
				e[name], m.Features[name] = pairs, f
			}
		}
		out, messages = append(out, e), append(messages, m)
	}
	text, _ := json.Marshal(map[string]any{"examples": out})
	return string(text), messages
}

// TestServe: serve has the predictions of predict over HTTP and gRPC. It answers without errors while a leader dies,
// from what it has while all servers are away, with 503 when that is too old, and again when they are back. It changes
// no row.
func TestServe(t *testing.T) {
	c := start(t, localcluster.Options{})
	s := trainServed(t, strings.Join(c.Endpoints(), ","), "--insecure")
	before, rows := c.digestOfAll(), c.sameDigests()
	ports := freePorts(t, 2)
	const maxAge = 8 * time.Second
	p := spawn(t, "rowraft-trainer", "serve", s.model, "--endpoints", strings.Join(c.Endpoints(), ","), "--insecure",
		"--listen", ports[0], "--grpc-listen", ports[1], "--max-age", maxAge.String(), "--max-examples", "400")
	url, web := "http://"+ports[0], &http.Client{}
	ctx := deadline(t, patience)
	if err := poll(ctx, func() error { return getOK(ctx, web, url+"/readyz") }); err != nil {
		t.Fatalf("%v: %s", err, &p.stderr)
	}

	all := s.header + strings.Join(s.lines, "")
	got, err := post(ctx, web, url+"/v1/score", "text/csv", all)
	if err := s.same(0, got, err); err != nil || len(got) != len(s.lines) {
		t.Errorf("CSV: %d predictions, %v", len(got), err)
	}
	text, messages := s.examples(0, len(s.lines))
	got, err = post(ctx, web, url+"/v1/score", "application/json", text)
	if err := s.same(0, got, err); err != nil || len(got) != len(s.lines) {
		t.Errorf("JSON: %d predictions, %v", len(got), err)
	}
	conn, err := rpc.Dial(ports[1], nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stub := servingv1.NewScoringClient(conn)
	for name, req := range map[string]*servingv1.ScoreRequest{"examples": {Examples: messages},
		"lines": {Lines: []byte(all)}} {
		reply, err := stub.Score(ctx, req)
		if err := s.same(0, reply.GetPredictions(), err); err != nil || reply.Tasks != 1 ||
			len(reply.Predictions) != len(s.lines) {
			t.Errorf("gRPC, %s: %v", name, err)
		}
	}
	t.Run("Errors", func(t *testing.T) { s.refusals(t, url, stub) })

	// Requests for all lines go on while the leader of the items dies and comes back.
	leads, err := c.leaders(ctx)
	if err != nil {
		t.Fatal(err)
	}
	load, stop := context.WithCancel(ctx)
	var loads sync.WaitGroup
	var failed []error
	var mu sync.Mutex
	answered := 0
	for worker := range 4 {
		loads.Go(func() {
			pace := time.NewTicker(5 * time.Millisecond)
			defer pace.Stop()
			for i := worker; load.Err() == nil; i++ {
				from := i * 7 % (len(s.lines) - 3)
				got, err := post(ctx, web, url+"/v1/score", "text/csv", s.header+strings.Join(s.lines[from:from+3], ""))
				mu.Lock()
				if answered++; err != nil || len(got) != 3 || s.same(from, got, nil) != nil {
					failed = append(failed, s.same(from, got, err))
				}
				mu.Unlock()
				<-pace.C
			}
		})
	}
	c.killAll(leads[:1])
	killed := time.Now()
	if err := poll(ctx, func() error { // until no copy of a row is from before
		if time.Since(killed) < maxAge {
			return errors.New("copies may be older")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	c.restartAll(leads[:1])
	stop()
	loads.Wait()
	if len(failed) > 0 || answered < 100 {
		t.Errorf("%d of %d requests failed while a leader was dead, the first: %v", len(failed), answered, errors.Join(
			failed[:min(len(failed), 3)]...))
	}

	// One line is used all the time. The servers go away.
	hot := func() error {
		got, err := post(ctx, web, url+"/v1/score", "text/csv", s.header+s.lines[1])
		return s.same(1, got, err)
	}
	if err := hot(); err != nil {
		t.Fatal(err)
	}
	away := time.Now()
	c.killAll(c.Servers())
	answered = 0
	pace := time.NewTicker(20 * time.Millisecond)
	defer pace.Stop()
	for time.Since(away) < maxAge/4 { // a copy lasts at least 3/8 of it
		if err := hot(); err != nil {
			t.Fatalf("%v after the servers were gone, rows that were there: %v", time.Since(away), err)
		}
		answered++
		<-pace.C
	}
	var refused statusError
	err = poll(ctx, func() error {
		if err := hot(); !errors.As(err, &refused) {
			return fmt.Errorf("%v: want an error with a status", err)
		}
		return nil
	})
	if err != nil || refused.status != http.StatusServiceUnavailable || refused.retryAfter == "" {
		t.Errorf("%v after the servers were gone: %v, %+v, want 503", time.Since(away), err, refused)
	}
	if gone := time.Since(away); gone > maxAge+5*time.Second {
		t.Errorf("answers of rows that are %v old: want at most %v", gone, maxAge)
	}
	if !strings.Contains(refused.text, `"code":"NoLeader"`) && !strings.Contains(refused.text, `"code":"TooStale"`) {
		t.Errorf("the refusal is %s", refused.text)
	}
	t.Logf("%d answers without servers, the first refusal after %v: %s", answered, time.Since(away), refused.text)
	if err := poll(ctx, func() error {
		if getOK(ctx, web, url+"/readyz") == nil {
			return errors.New("ready without weights")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	c.restartAll(c.Servers())
	if err := poll(ctx, func() error { return errors.Join(hot(), getOK(ctx, web, url+"/readyz")) }); err != nil {
		t.Errorf("after the servers are back: %v", err)
	}
	s.metrics(t, web, url)

	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.code(t, patience); code != 0 {
		t.Errorf("exit code %d after SIGTERM: %s", code, &p.stderr)
	}
	if after := c.digestOfAll(); after != before || c.sameDigests() != rows {
		t.Error("serving changed rows of the cluster")
	}
}

func getOK(ctx context.Context, c *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %d %s", url, resp.StatusCode, text)
	}
	return err
}

// refusals sends what is wrong.
func (s *served) refusals(t *testing.T, url string, stub servingv1.ScoringClient) {
	ctx, web := deadline(t, patience), &http.Client{}
	for _, tc := range []struct {
		kind, path, body string
		status           int
		want             string
	}{
		{"application/json", "", `{"examples": [{"age": 1}, {"age": "old"}]}`, 400, `example 1: age: \"old\"`},
		{"text/csv", "", s.header + s.lines[0] + "1,1,1,a,,,x\n", 400, `example 1, line 3: item: \"x\"`},
		{"application/xml", "", "<a/>", 415, "application/xml"},
		{"text/csv", "", s.header + strings.Repeat(s.lines[0], 401), 400, "more than 400 examples"},
		{"application/json", "", `{"examples": "` + strings.Repeat("a", 5<<20) + `"}`, 413, "bytes"},
		{"text/csv", "?timeout=soon", s.header + s.lines[0], 400, "timeout"},
		{"text/csv", "?timeout=1ns", s.header + s.lines[0], 504, "in time"},
	} {
		_, err := post(ctx, web, url+"/v1/score"+tc.path, tc.kind, tc.body)
		var got statusError
		if !errors.As(err, &got) || got.status != tc.status || !strings.Contains(got.text, tc.want) {
			t.Errorf("%s%s: %v, want %d and %q", tc.kind, tc.path, err, tc.status, tc.want)
		}
	}
	_, err := stub.Score(ctx, &servingv1.ScoreRequest{Examples: []*servingv1.Example{{}, {Features: map[string]*servingv1.
		Feature{"sity": {Texts: []string{"a"}}}}}})
	if rowraft.CodeOf(err) != rowraft.CodeInvalidArgument || !strings.Contains(err.Error(), "example 1: sity: the model") {
		t.Errorf("gRPC: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, time.Nanosecond)
	defer cancel()
	if _, err := stub.Score(short, &servingv1.ScoreRequest{}, grpc.WaitForReady(true)); rowraft.CodeOf(err) !=
		rowraft.CodeDeadline {
		t.Errorf("gRPC with a deadline that is over: %v", err)
	}
}

// metrics looks for the metrics of what the test did.
func (s *served) metrics(t *testing.T, web *http.Client, url string) {
	t.Helper()
	resp, err := web.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`rowraft_serve_requests_total{code="ok",protocol="http"}`,
		`rowraft_serve_requests_total{code="ok",protocol="grpc"} 2`,
		`rowraft_serve_requests_total{code="InvalidArgument",protocol="grpc"} 1`, "rowraft_serve_ready 1",
		"rowraft_serve_request_seconds_bucket", "rowraft_serve_weights_age_seconds_bucket",
		"rowraft_serve_waiting_examples 0",
		"rowraft_serve_copied_rows_total ", "rowraft_serve_rows_total ", "rowraft_serve_batch_examples_bucket"} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("no %s in the metrics", want)
		}
	}
	if bytes.Contains(text, []byte("rowraft_serve_copied_rows_total 0\n")) {
		t.Error("no row came from a copy")
	}
}

// TestServeAnExport: an export is served without a cluster, with the predictions of predict.
func TestServeAnExport(t *testing.T) {
	c := start(t, localcluster.Options{Servers: 1, Shards: 1})
	s := trainServed(t, strings.Join(c.Endpoints(), ","), "--insecure")
	dir := filepath.Join(t.TempDir(), "exported")
	p := spawn(t, "rowraft-trainer", "export", "--model", s.model, "--to", dir, "--endpoints",
		strings.Join(c.Endpoints(), ","), "--insecure")
	if code := p.code(t, patience); code != 0 {
		t.Fatalf("exit code %d: %s", code, &p.stderr)
	}
	ports, web, ctx := freePorts(t, 1), &http.Client{}, deadline(t, patience)
	p = spawn(t, "rowraft-trainer", "serve", "--from", dir, "--insecure", "--listen", ports[0], "--grpc-listen", "")
	if err := poll(ctx, func() error { return getOK(ctx, web, "http://"+ports[0]+"/readyz") }); err != nil {
		t.Fatalf("%v: %s", err, &p.stderr)
	}
	got, err := post(ctx, web, "http://"+ports[0]+"/v1/score", "text/csv", s.header+strings.Join(s.lines, ""))
	if err := s.same(0, got, err); err != nil || len(got) != len(s.lines) {
		t.Errorf("%d predictions, %v", len(got), err)
	}
}

// TestServeWithCertificates: serve works with the certificate of a reader, and answers callers that may read the tables
// of the model.
func TestServeWithCertificates(t *testing.T) {
	needBinaries(t)
	lab := newCertificates(t, "lab")
	lab.rowraft("server", "--name", "server")
	client := func(role, name, tables string) []string {
		lab.rowraft("client", "--role", role, "--name", name, "--tables", tables, "--host", "127.0.0.1")
		return lab.flags(name)
	}
	trainer, reader := client("trainer", "ctr", "served.*"), client("reader", "scores", "served.*")
	client("reader", "other", "clicks.*")
	ready := filepath.Join(t.TempDir(), "ready")
	spawn(t, "rowraft", append(lab.flags("server"), "server", "--with-scheduler", "--servers", "1", "--shards", "1",
		"--data-dir", filepath.Join(t.TempDir(), "n1"), "--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0",
		"--ready-file", ready, "--profile", "fast", "--disk-stall-limit", "60s")...)
	says(t, ready, "}")
	var at struct {
		Addr string `json:"addr"`
	}
	readJSON(t, ready, &at)
	s := trainServed(t, at.Addr, trainer...)
	ports, ctx := freePorts(t, 2), deadline(t, patience)
	p := spawn(t, "rowraft-trainer", append([]string{"serve", s.model, "--endpoints", at.Addr, "--listen", ports[0],
		"--grpc-listen", ports[1]}, reader...)...)
	web := func(name string) *http.Client {
		return &http.Client{Transport: &http.Transport{TLSClientConfig: lab.tls(name)}}
	}
	url := "https://" + ports[0]
	if err := poll(ctx, func() error { return getOK(ctx, web(""), url+"/readyz") }); err != nil { // a probe has none
		t.Fatalf("%v: %s", err, &p.stderr)
	}
	got, err := post(ctx, web("scores"), url+"/v1/score", "text/csv", s.header+strings.Join(s.lines, ""))
	if err := s.same(0, got, err); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]string{"": "no certificate", "other": "served.embeddings"} {
		var refused statusError
		_, err := post(ctx, web(name), url+"/v1/score", "text/csv", s.header+s.lines[0])
		if !errors.As(err, &refused) || refused.status != http.StatusForbidden || !strings.Contains(refused.text, want) {
			t.Errorf("a caller with the certificate %q: %v", name, err)
		}
	}
	for name, want := range map[string]codes.Code{"scores": codes.OK, "other": codes.PermissionDenied} {
		conn, err := grpc.NewClient(ports[1], grpc.WithTransportCredentials(credentials.NewTLS(lab.tls(name))))
		if err != nil {
			t.Fatal(err)
		}
		_, err = servingv1.NewScoringClient(conn).Score(ctx, &servingv1.ScoreRequest{Lines: []byte(s.header + s.lines[0])})
		if status.Code(err) != want {
			t.Errorf("gRPC with the certificate %s: %v, want %v", name, err, want)
		}
		conn.Close()
	}
	if err := getOK(ctx, web(""), url+"/metrics"); err == nil {
		t.Error("the metrics are there without a certificate")
	}
	if err := getOK(ctx, &http.Client{}, "http://"+ports[0]+"/readyz"); err == nil {
		t.Error("the port answers plaintext")
	}
}
