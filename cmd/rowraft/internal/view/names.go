package view

import (
	"strings"
	"time"

	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// Dash returns s, or "-" for the empty string.
func Dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// NameOr returns the name of a server for a table, or the start of its id.
func NameOr(name, id string) string {
	if name != "" {
		return name
	}
	return id[:min(len(id), 8)]
}

// RoleLeader is the role of a leader in [Replica].
const RoleLeader = "leader"

// leadersOf returns the number of shards that each server leads.
func leadersOf(r *rowraftv1.StatusReply) map[string]int {
	out := make(map[string]int)
	for _, l := range rpc.Leaders(r) {
		out[l.Node]++
	}
	return out
}

// NodeName returns the name of the node with this id.
func NodeName(m *rowraftv1.Map, node string) string {
	for _, n := range m.GetNodes() {
		if n.GetId() == node {
			return NameOr(n.GetName(), node)
		}
	}
	return NameOr("", node)
}

// Word returns the name of a state for output.
func Word(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }

// Time formats Unix nanoseconds; 0 is "".
func Time(ns uint64) string {
	if ns == 0 {
		return ""
	}
	return time.Unix(0, int64(ns)).UTC().Format(time.RFC3339)
}

func inSeconds(ns uint64) float64 { return float64(ns/1e6) / 1e3 }

// Seconds formats a duration for text output: 4.2s, 3m20s, 5h0m0s.
func Seconds(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	if d < time.Minute {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// ServersIn returns the number of nodes that can hold replicas.
func ServersIn(m *rowraftv1.Map) (n int) {
	for _, node := range m.GetNodes() {
		if !node.GetNoShards() {
			n++
		}
	}
	return n
}
