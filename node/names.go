package node

import (
	"context"
	"log/slog"
	"reflect"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft/clustermap"
)

// nameHandler is a slog.Handler for people: every line has the name of this server under the key self, and names in
// place of the ids of servers and replicas (clustermap.Map.WithNames). A server may get its name, and the map its
// entries, after a logger was derived, so the handler keeps the attributes of With and formats them with each line.
type nameHandler struct {
	next  slog.Handler
	attrs []slog.Attr
	self  func() string
	ids   func() *clustermap.Map // nil until the map is known
}

func (h *nameHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

func (h *nameHandler) Handle(ctx context.Context, r slog.Record) error {
	m := h.ids()
	out := slog.NewRecord(r.Time, r.Level, m.WithNames(r.Message), r.PC)
	out.AddAttrs(slog.String("self", h.self()))
	for _, a := range h.attrs {
		out.AddAttrs(withNames(m, a))
	}
	r.Attrs(func(a slog.Attr) bool {
		out.AddAttrs(withNames(m, a))
		return true
	})
	return h.next.Handle(ctx, out)
}

func (h *nameHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	c.attrs = slices.Concat(h.attrs, attrs)
	return &c
}

// WithGroup implements slog.Handler. The attributes so far stay outside the group.
func (h *nameHandler) WithGroup(name string) slog.Handler {
	c := *h
	c.next, c.attrs = h.next.WithAttrs(h.attrs).WithGroup(name), nil
	return &c
}

// nameErrors replaces the ids in the errors of a call.
func (n *Node) nameErrors(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
	reply, err := h(ctx, req)
	return reply, errWithNames(n.knownMap(), err)
}

func (n *Node) nameStreamErrors(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo,
	h grpc.StreamHandler) error {
	return errWithNames(n.knownMap(), h(srv, stream))
}

// nameMetrics adds the label server, with the name of this server, to all metrics: a dashboard shows names without a
// join, and an alert names the server.
type nameMetrics struct {
	next prometheus.Gatherer
	self func() string
}

func (g nameMetrics) Gather() ([]*dto.MetricFamily, error) {
	families, err := g.next.Gather()
	label := &dto.LabelPair{Name: proto.String("server"), Value: proto.String(g.self())}
	for _, f := range families {
		for _, m := range f.Metric {
			m.Label = append(slices.Clip(m.Label), label)
			slices.SortFunc(m.Label, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
		}
	}
	return families, err
}

// namedError is an error with names in its text.
type namedError struct {
	error
	text string
}

func (e namedError) Error() string { return e.text }
func (e namedError) Unwrap() error { return e.error }

// errWithNames replaces the ids in the text of err.
func errWithNames(m *clustermap.Map, err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if named := m.WithNames(text); named != text {
		return namedError{err, named}
	}
	return err
}

// withNames replaces the ids in the value of a. hashicorp/raft logs structs with ids in them.
func withNames(m *clustermap.Map, a slog.Attr) slog.Attr {
	a.Value = a.Value.Resolve()
	switch a.Value.Kind() {
	case slog.KindString:
		a.Value = slog.StringValue(m.WithNames(a.Value.String()))
	case slog.KindAny:
		switch v := a.Value.Any().(type) {
		case error:
			a.Value = slog.AnyValue(errWithNames(m, v))
		case []string:
			named := make([]string, len(v))
			for i, s := range v {
				named[i] = m.WithNames(s)
			}
			a.Value = slog.AnyValue(named)
		default:
			if k := reflect.ValueOf(v).Kind(); k == reflect.Struct || k == reflect.String {
				a.Value = slog.StringValue(m.WithNames(a.Value.String()))
			}
		}
	}
	return a
}
