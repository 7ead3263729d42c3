//go:build cgo

package main

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
)

// TestPanics: a panic of an operation is its error.
func TestPanics(t *testing.T) {
	o := start(0, -1, func(context.Context, *session) (result, error) { panic("oops") })
	if !o.wait(-1) || rowraft.CodeOf(o.result.err) != rowraft.CodeInternal {
		t.Errorf("a panic ended with %v, want CodeInternal", o.result.err)
	}
	operations.remove(o.id)
}

// TestOperations: an operation ends with its timeout, by cancel, and at once for a client that does not exist.
func TestOperations(t *testing.T) {
	untilDone := func(ctx context.Context, _ *session) (result, error) { <-ctx.Done(); return result{}, ctx.Err() }
	for name, o := range map[string]*operation{
		"timeout": start(0, time.Millisecond, untilDone), "cancel": start(0, -1, untilDone),
	} {
		if name == "cancel" {
			if o.wait(0) {
				t.Error("it ended by itself")
			}
			o.cancel()
		}
		if o.wait(-1); rowraft.CodeOf(o.result.err) != rowraft.CodeDeadline {
			t.Errorf("%s: %v, want CodeDeadline", name, o.result.err)
		}
		operations.remove(o.id)
	}
	o := start(99, -1, untilDone)
	if !o.wait(0) || rowraft.CodeOf(o.result.err) != rowraft.CodeClosing {
		t.Errorf("a client that does not exist: %v, want CodeClosing", o.result.err)
	}
	operations.remove(o.id)
	if n := operations.len(); n != 0 {
		t.Errorf("%d operations are left", n)
	}
}

// TestSchemas: a schema survives its JSON, with the defaults of its rule for constants that are not given.
func TestSchemas(t *testing.T) {
	for _, kind := range rowraft.OptimizerNames() {
		q := schemaJSON{Name: "user", Kind: "sparse", Dim: 4, Optimizer: kind, Storage: "bfloat16", Admit: "count:3",
			Init: initJSON{Kind: "normal", Mean: 1, Std: 2, Seed: 7}, Expire: "168h", Capacity: 1 << 20, Evict: "lru"}
		s, err := q.schema()
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		if lr := s.Optimizer.Kind.Default("lr"); s.Optimizer.Kind.Has("lr") && s.Optimizer.LR != lr {
			t.Errorf("%s: lr %v, want the default %v", kind, s.Optimizer.LR, lr)
		}
		text, err := json.Marshal(newTableJSON(s))
		if err != nil {
			t.Fatal(err)
		}
		var back tableJSON
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatal(err)
		}
		if again, err := back.schema(); err != nil || !again.SameShape(s) {
			t.Errorf("%s: %s became %+v, %v", kind, text, again, err)
		}
	}
}

// TestConstants: each constant of a rule is one of those that a request may name.
func TestConstants(t *testing.T) {
	for _, name := range constants {
		if new(rowraft.Optimizer).Constant(name) == nil {
			t.Errorf("there is no constant %s", name)
		}
	}
	for _, kind := range rowraft.OptimizerNames() {
		q := schemaJSON{Name: "user", Kind: "sparse", Dim: 4, Optimizer: kind, Storage: "float32",
			Init: initJSON{Kind: "zeros"}, Constants: map[string]float32{"speed": 1}}
		if _, err := q.schema(); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("%s with a constant that it does not have: %v", kind, err)
		}
	}
}
