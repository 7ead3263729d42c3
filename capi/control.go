//go:build cgo

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// scanHandles numbers the scans of all clients.
var scanHandles atomic.Uint64

// call runs a request in JSON: {"call": "table", …}. s is nil for client 0.
func call(ctx context.Context, s *session, body []byte) ([]byte, error) {
	var name struct {
		Call string `json:"call"`
	}
	if err := json.Unmarshal(body, &name); err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "request: %w", err)
	}
	known := calls
	switch {
	case s == nil:
		known = free
	case s.local != nil:
		known = localCalls
	}
	f := known[name.Call]
	switch {
	case f == nil && s != nil && s.local != nil && calls[name.Call] != nil:
		return nil, rowraft.Errorf(rowraft.CodePrecondition, "%s: tables in this process have no cluster (rowraft.connect)",
			name.Call)
	case f == nil:
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "unknown call %q", name.Call)
	}
	v, err := f(ctx, s, body)
	if err != nil || v == nil {
		return nil, err
	}
	return json.Marshal(v)
}

// request makes a function of a request one of its JSON. A field that the request does not have is an error.
func request[Q any](f func(context.Context, *session, Q) (any, error)) func(context.Context, *session, []byte) (any,
	error) {
	return func(ctx context.Context, s *session, body []byte) (any, error) {
		var q struct {
			Call string `json:"call"`
			With Q      `json:"with"`
		}
		d := json.NewDecoder(bytes.NewReader(body))
		d.DisallowUnknownFields()
		if err := d.Decode(&q); err != nil {
			return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "request: %w", err)
		}
		return f(ctx, s, q.With)
	}
}

type nothing struct{}

// named is a request that names a table, a scan or a server.
type named struct {
	Name   string `json:"name"`
	Handle uint64 `json:"handle"`
}

// createJSON is a request for a table.
type createJSON struct {
	Schema  schemaJSON `json:"schema"`
	ExistOK bool       `json:"exist_ok"`
}

// calls are the requests of a client.
var calls = map[string]func(context.Context, *session, []byte) (any, error){
	"table": request(func(ctx context.Context, s *session, q named) (any, error) {
		t, err := s.client.Table(ctx, q.Name)
		if err != nil {
			return nil, err
		}
		return newTableJSON(s.hold(t).Schema()), nil
	}),
	"tables": request(func(ctx context.Context, s *session, _ nothing) (any, error) {
		tables, err := s.client.Tables(ctx)
		return newTablesJSON(tables), err
	}),
	"create": request(func(ctx context.Context, s *session, q createJSON) (any, error) {
		schema, err := q.Schema.schema()
		if err != nil {
			return nil, err
		}
		t, err := s.client.CreateTable(ctx, schema, q.ExistOK)
		if err != nil {
			return nil, err
		}
		return newTableJSON(s.hold(t).Schema()), nil
	}),
	"drop": request(func(ctx context.Context, s *session, q named) (any, error) {
		t, err := s.table(rowraft.TableID(q.Handle))
		if err != nil {
			return nil, err
		}
		if err := s.client.DropTable(ctx, t); err != nil {
			return nil, err
		}
		return nil, s.forget(ctx, t)
	}),
	"flush": request(func(ctx context.Context, s *session, _ nothing) (any, error) {
		return nil, s.client.Flush(ctx)
	}),
	"scan": request(func(_ context.Context, s *session, q named) (any, error) {
		t, err := s.table(rowraft.TableID(q.Handle))
		if err != nil {
			return nil, err
		}
		handle, err := s.startScan(t.Dim(), t.Scan)
		return named{Handle: handle}, err
	}),
	"end_scan": request(func(_ context.Context, s *session, q named) (any, error) {
		s.endScan(q.Handle)
		return nil, nil
	}),
	"servers": request(func(ctx context.Context, s *session, _ nothing) (any, error) {
		return s.servers(ctx), nil
	}),
	"checkpoint": request(createCheckpoint),
	"restored": request(func(ctx context.Context, s *session, _ nothing) (any, error) {
		from, err := s.client.Restored(ctx)
		out := make([]sourceJSON, len(from.Sources))
		for i, c := range from.Sources {
			out[i] = sourceJSON{c.ID, c.Tables, len(c.Trained) > 0}
		}
		return out, err
	}),

	"job_find":       request(findJob),
	"job_enter":      request(enterJob),
	"job_next":       request(nextStep),
	"job_checkpoint": request(checkpointJob),
	"job_leave":      request(leaveJob),
	"job_park":       request(parkJob),
}

// free are the requests without a client.
var free = map[string]func(context.Context, *session, []byte) (any, error){
	"dial":         request(dial),
	"local_tables": request(openLocal),
	"close": request(func(_ context.Context, _ *session, q named) (any, error) {
		if s, ok := sessions.get(q.Handle); ok {
			return nil, s.close()
		}
		return nil, nil
	}),
	"codes": request(func(context.Context, *session, nothing) (any, error) {
		out := make([]codeJSON, rowraft.Codes)
		for i := range out {
			c := rowraft.Code(i)
			out[i] = codeJSON{c.String(), c.MaybeApplied(), c.Retryable()}
		}
		return out, nil
	}),
	"runtime": request(func(context.Context, *session, nothing) (any, error) {
		return map[string]any{"version": version, "goroutines": runtime.NumGoroutine(), "operations": operations.len(),
			"clients": sessions.len()}, nil
	}),
	// For tests of a caller: a panic, and a call that lasts.
	"panic": request(func(context.Context, *session, nothing) (any, error) { panic("on request") }),
	"sleep": request(func(ctx context.Context, _ *session, q struct {
		Seconds float64 `json:"seconds"`
	}) (any, error) {
		select {
		case <-time.After(time.Duration(q.Seconds * float64(time.Second))):
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}),

	"start_cluster":  request(startCluster),
	"stop_cluster":   request(stopCluster),
	"kill_server":    request(killServer),
	"restart_server": request(restartServer),
}

type codeJSON struct {
	Name         string `json:"name"`
	MaybeApplied bool   `json:"maybe_applied"`
	Retryable    bool   `json:"retryable"`
}

// dial connects a client.
func dial(ctx context.Context, _ *session, q struct {
	Endpoints []string `json:"endpoints"`
	Certs     string   `json:"certs"` // directory of ca.pem, client.pem and client.key; "": plaintext
	DType     string   `json:"dtype"` // "": float32
	InFlight  int      `json:"in_flight"`
}) (any, error) {
	opts := client.Options{Endpoints: q.Endpoints, MaxInFlight: q.InFlight}
	if q.Certs != "" {
		opts.TLS = client.TLSFiles{Cert: filepath.Join(q.Certs, "client.pem"), Key: filepath.Join(q.Certs, "client.key"),
			CA: filepath.Join(q.Certs, "ca.pem")}
	}
	if q.DType != "" {
		var err error
		if opts.DType, err = rowraft.ParseDType(q.DType); err != nil {
			return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "dtype %w", err)
		}
	}
	c, err := client.Dial(ctx, opts)
	if err != nil {
		return nil, err
	}
	return named{Handle: newSession(&session{client: c, tables: make(map[rowraft.TableID]*client.Table)})}, nil
}

// forget waits until the client's map does not name a table that was dropped, so that its name is no longer found.
func (s *session) forget(ctx context.Context, t *client.Table) error {
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for {
		if now, err := s.client.Map().Table(t.Schema().Name); err != nil || now.ID != t.Schema().ID {
			return nil
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// serverJSON is a server of the cluster.
type serverJSON struct {
	Name  string   `json:"name"`
	Addr  string   `json:"addr"`
	Up    bool     `json:"up"`
	Leads []uint32 `json:"leads"` // the shards whose leader it says it is
}

// ask fills in what the server itself says. A server that does not answer within a second is not up.
func (s *session) ask(ctx context.Context, of *serverJSON) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := s.client.Control().Conn(of.Addr)
	if err != nil {
		return
	}
	reply, err := rowraftv1.NewReplicasClient(conn).NodeStatus(ctx, &rowraftv1.NodeStatusRequest{})
	of.Up = err == nil
	for _, r := range reply.GetReplicas() {
		if r.GetRole() == "leader" {
			of.Leads = append(of.Leads, r.GetShard())
		}
	}
}

// sourceJSON is a checkpoint that was restored, with the tables that come from it.
type sourceJSON struct {
	ID      string   `json:"id"`
	Tables  []string `json:"tables"`
	Trained bool     `json:"trained"` // trainers of a job may have changed them since
}

// ticks is a time to live as ParseTicks reads it; "" is never.
func ticks(n uint32) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(n), 10)
}
