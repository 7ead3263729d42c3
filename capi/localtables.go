//go:build cgo

package main

/*
#include "rowraft.h"
*/
import "C"

import (
	"context"
	"unsafe"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/trainer/tables"
	"github.com/rowraft/rowraft/wire"
)

// localCalls are the requests of a session without a cluster, whose tables are in this process. The other ones of calls
// are refused.
var localCalls = map[string]func(context.Context, *session, []byte) (any, error){
	"table": request(func(_ context.Context, s *session, q named) (any, error) {
		for _, t := range s.local.Schemas() {
			if t.Name == q.Name {
				return newTableJSON(t), nil
			}
		}
		return nil, rowraft.Errorf(rowraft.CodeTableNotFound, "table %s does not exist", q.Name)
	}),
	"tables": request(func(_ context.Context, s *session, _ nothing) (any, error) {
		var out []client.TableInfo
		for _, t := range s.local.Schemas() {
			out = append(out, client.TableInfo{Schema: t, Rows: uint64(s.local.Len(t.ID))})
		}
		return newTablesJSON(out), nil
	}),
	"create": request(func(_ context.Context, s *session, q createJSON) (any, error) {
		schema, err := q.Schema.schema()
		if err == nil {
			schema, err = s.local.Create(schema, q.ExistOK)
		}
		return newTableJSON(schema), err
	}),
	"drop": request(func(_ context.Context, s *session, q named) (any, error) {
		return nil, s.local.Drop(rowraft.TableID(q.Handle))
	}),
	"flush": request(func(context.Context, *session, nothing) (any, error) { return nil, nil }), // each push has ended
	"scan": request(func(_ context.Context, s *session, q named) (any, error) {
		t, err := localSchema(s.local, rowraft.TableID(q.Handle))
		if err != nil {
			return nil, err
		}
		handle, err := s.startScan(t.Dim, func(_ context.Context, rows func([]rowraft.Key, []float32) error) error {
			return s.local.Scan(t.ID, rows)
		})
		return named{Handle: handle}, err
	}),
	"end_scan": calls["end_scan"],
}

// openLocal makes a session without a cluster. Numbers are rounded as a client with that type on the wire rounds them.
func openLocal(_ context.Context, _ *session, q struct {
	DType string `json:"dtype"`
}) (any, error) {
	dtype, err := rowraft.ParseDType(q.DType)
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "dtype %w", err)
	}
	l, err := tables.NewLocal(1, dtype)
	if err != nil {
		return nil, err
	}
	return named{Handle: newSession(&session{local: l})}, nil
}

func localSchema(l *tables.Local, table rowraft.TableID) (rowraft.Schema, error) {
	for _, s := range l.Schemas() {
		if s.ID == table {
			return s, nil
		}
	}
	return rowraft.Schema{}, rowraft.Errorf(rowraft.CodeTableNotFound, "table %d does not exist", table)
}

// moveLocal is move for tables in this process.
func moveLocal(ctx context.Context, l *tables.Local, what C.int32_t, parts []C.rowraft_segment, body []byte) error {
	segs := make([]tables.Segment, len(parts))
	for i := range parts {
		p := &parts[i]
		s, err := localSchema(l, rowraft.TableID(p.table))
		if err != nil {
			return err
		}
		segs[i] = tables.Segment{Table: s.ID, Dim: s.Dim, Keys: slice[rowraft.Key](unsafe.Pointer(p.keys), p.n),
			LR: float32(p.lr)}
		if what != C.ROWRAFT_DELETE {
			segs[i].Values = slice[float32](unsafe.Pointer(p.values), p.n*C.int64_t(s.Dim))
		}
	}
	switch what {
	case C.ROWRAFT_PULL:
		if _, err := readMode(body); err != nil { // each mode reads the same rows
			return err
		}
		for i := range segs {
			present := slice[bool](unsafe.Pointer(parts[i].present), parts[i].n)
			if err := l.Present(ctx, segs[i], present); err != nil {
				return err
			}
		}
		return nil
	case C.ROWRAFT_PUSH:
		if err := mergeKeys(wire.OpPush, segs); err != nil {
			return err
		}
		return l.Push(ctx, segs)
	case C.ROWRAFT_ASSIGN:
		if err := mergeKeys(wire.OpAssign, segs); err != nil {
			return err
		}
		return l.Assign(segs)
	case C.ROWRAFT_DELETE:
		for i := range segs {
			if err := l.Delete(segs[i].Table, segs[i].Keys); err != nil {
				return err
			}
		}
		return nil
	}
	return rowraft.Errorf(rowraft.CodeInvalidArgument, "unknown operation %d with %d segments", what, len(parts))
}

// mergeKeys makes the keys of a write strictly ascending.
func mergeKeys(op wire.Op, segs []tables.Segment) error {
	for i := range segs {
		s := &segs[i]
		for j := range i {
			if segs[j].Table == s.Table {
				return rowraft.Errorf(rowraft.CodeInvalidArgument, "table %d has two segments in one push: merge them", s.Table)
			}
		}
		s.Keys, s.Values = wire.Ascending(op, s.Keys, s.Values, s.Dim)
	}
	return nil
}
