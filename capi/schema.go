//go:build cgo

package main

import (
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
)

// initJSON is an initializer. Low and High are of uniform, Mean and Std of normal.
type initJSON struct {
	Kind string  `json:"kind"`
	Seed uint64  `json:"seed"`
	Low  float32 `json:"low,omitempty"`
	High float32 `json:"high,omitempty"`
	Mean float32 `json:"mean,omitempty"`
	Std  float32 `json:"std,omitempty"`

	NameHash uint64 `json:"name_hash,omitempty"` // in an answer: optim.Init takes it with the seed
}

// schemaJSON is a table's schema. In a request, constants of the optimizer that are missing have their defaults.
type schemaJSON struct {
	Name      string             `json:"name"`
	Kind      string             `json:"kind"`
	Dim       int                `json:"dim"`
	Init      initJSON           `json:"init"`
	Optimizer string             `json:"optimizer"`
	Constants map[string]float32 `json:"constants"` // by the names of docs/optimizers.md
	Storage   string             `json:"storage"`
	Admit     string             `json:"admit"`
	Expire    string             `json:"expire"` // a duration or seconds
	Capacity  uint64             `json:"capacity"`
	Evict     string             `json:"evict"`
}

// tableJSON is a table in an answer.
type tableJSON struct {
	schemaJSON
	Handle uint64 `json:"handle"`
	Rows   uint64 `json:"rows"` // in the list of tables
}

// constants are the names of all constants of optimizers.
var constants = []string{"lr", "initial_accumulator", "epsilon", "beta1", "beta2", "momentum", "l1", "l2", "beta",
	"weight_decay", "bound"}

func (q *schemaJSON) schema() (s rowraft.Schema, err error) {
	bad := func(format string, args ...any) (rowraft.Schema, error) {
		return s, rowraft.Errorf(rowraft.CodeInvalidArgument, format, args...)
	}
	s = rowraft.Schema{Name: q.Name, Dim: q.Dim, Initializer: rowraft.Initializer{Seed: q.Init.Seed}}
	switch q.Kind {
	case "sparse":
		s.Kind = rowraft.Sparse
	case "dense":
		s.Kind = rowraft.Dense
	default:
		return bad("kind %q: want sparse or dense", q.Kind)
	}
	switch i := &s.Initializer; q.Init.Kind {
	case "zeros":
		i.Kind = rowraft.InitZeros
	case "uniform":
		i.Kind, i.A, i.B = rowraft.InitUniform, q.Init.Low, q.Init.High
	case "normal":
		i.Kind, i.A, i.B = rowraft.InitNormal, q.Init.Mean, q.Init.Std
	default:
		return bad("init %q: want zeros, uniform or normal", q.Init.Kind)
	}
	kind, err := rowraft.ParseOptimizerKind(q.Optimizer)
	if err != nil {
		return s, err
	}
	s.Optimizer.Kind = kind
	for _, name := range constants {
		if kind.Has(name) {
			*s.Optimizer.Constant(name) = kind.Default(name)
		}
	}
	for name, v := range q.Constants {
		if !kind.Has(name) {
			return bad("optimizer %s has no %s", kind, name)
		}
		*s.Optimizer.Constant(name) = v
	}
	if s.Storage, err = rowraft.ParseDType(q.Storage); err != nil {
		return bad("storage %w", err)
	}
	s = s.Normal()
	if s.Admission, err = rowraft.ParseAdmission(q.Admit); err != nil {
		return s, err
	}
	if s.Expire, err = rowraft.ParseTicks(q.Expire); err != nil {
		return s, err
	}
	s.Capacity.Rows = q.Capacity
	if s.Capacity.Evict, err = rowraft.ParseEvict(q.Evict); err != nil {
		return s, err
	}
	return s, s.Validate()
}

func newTableJSON(s rowraft.Schema) tableJSON {
	i, o := s.Initializer, s.Optimizer
	t := tableJSON{Handle: uint64(s.ID), schemaJSON: schemaJSON{
		Name: s.Name, Kind: s.Kind.String(), Dim: s.Dim, Init: initJSON{Kind: i.Kind.String(), Seed: i.Seed},
		Optimizer: o.Kind.String(), Constants: make(map[string]float32),
		Storage: s.StorageType().String(), Admit: s.Admission.String(), Expire: ticks(s.Expire), Capacity: s.Capacity.Rows,
	}}
	if s.Capacity.Rows > 0 {
		t.Evict = s.Capacity.Evict.String()
	}
	switch i.Kind {
	case rowraft.InitUniform:
		t.Init.Low, t.Init.High, t.Init.NameHash = i.A, i.B, i.NameHash
	case rowraft.InitNormal:
		t.Init.Mean, t.Init.Std, t.Init.NameHash = i.A, i.B, i.NameHash
	}
	for _, name := range constants {
		if o.Kind.Has(name) {
			t.Constants[name] = *o.Constant(name)
		}
	}
	return t
}

func newTablesJSON(tables []client.TableInfo) []tableJSON {
	out := make([]tableJSON, len(tables))
	for i := range tables {
		out[i] = newTableJSON(tables[i].Schema)
		out[i].Rows = tables[i].Rows
	}
	return out
}
