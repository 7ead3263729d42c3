package tables

import (
	"errors"
	"slices"
	"testing"

	"github.com/rowraft/rowraft"
)

// TestLocalStore: what a client does with tables beyond training.
func TestLocalStore(t *testing.T) {
	l, err := NewLocal(1, rowraft.Float32)
	if err != nil {
		t.Fatal(err)
	}
	schema := rowraft.Schema{Name: "user", Kind: rowraft.Sparse, Dim: 2, Optimizer: rowraft.Optimizer{Kind: rowraft.Add},
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}}
	user, err := l.Create(schema, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Create(schema, false); rowraft.CodeOf(err) != rowraft.CodeTableExists {
		t.Errorf("a second table of the name: %v, want CodeTableExists", err)
	}
	if again, err := l.Create(schema, true); err != nil || again != user {
		t.Errorf("the table again: %+v, %v, want %+v", again, err, user)
	}

	const n = 10_000 // more than a batch of Scan
	keys, values := make([]rowraft.Key, n), make([]float32, 2*n)
	for i := range keys {
		keys[i] = rowraft.Key(2 * i)
		values[2*i], values[2*i+1] = float32(i), 1
	}
	seg := Segment{Table: user.ID, Dim: 2, Keys: keys, Values: values}
	if err := l.Assign([]Segment{seg}); err != nil {
		t.Fatal(err)
	}
	unsorted := Segment{Table: user.ID, Dim: 2, Keys: []rowraft.Key{9, 1}, Values: make([]float32, 4)}
	for _, write := range []func() error{
		func() error { return l.Assign([]Segment{seg, unsorted}) },
		func() error { return l.Push(t.Context(), []Segment{seg, unsorted}) },
	} {
		if err := write(); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument || l.Len(user.ID) != n {
			t.Errorf("keys that do not ascend: %v and %d rows, want CodeInvalidArgument and %d", err, l.Len(user.ID), n)
		}
	}
	if err := l.Delete(user.ID, []rowraft.Key{0, 0, 1, 8192}); err != nil || l.Len(user.ID) != n-2 {
		t.Errorf("delete: %v, and %d rows are left, want %d", err, l.Len(user.ID), n-2)
	}
	var gotKeys []rowraft.Key
	var got []float32
	if err := l.Scan(user.ID, func(k []rowraft.Key, w []float32) error {
		gotKeys, got = append(gotKeys, k...), append(got, w...)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	wantKeys, want := slices.Clone(keys), slices.Clone(values)
	for _, i := range []int{4096, 0} {
		wantKeys, want = slices.Delete(wantKeys, i, i+1), slices.Delete(want, 2*i, 2*i+2)
	}
	if !slices.Equal(gotKeys, wantKeys) || !slices.Equal(got, want) {
		t.Errorf("a scan has %d keys and %d weights, not those that were assigned and not deleted", len(gotKeys), len(got))
	}
	stop := errors.New("stop")
	if err := l.Scan(user.ID, func([]rowraft.Key, []float32) error { return stop }); err != stop {
		t.Errorf("a scan that its caller ends: %v", err)
	}

	// A row that takes the place of a deleted one begins as a new row does.
	one := Segment{Table: user.ID, Dim: 2, Keys: []rowraft.Key{0}, Values: []float32{3, 4}}
	if err := l.Push(t.Context(), []Segment{one}); err != nil {
		t.Fatal(err)
	}
	one.Values = make([]float32, 2)
	if err := l.Pull(t.Context(), []Segment{one}); err != nil || !slices.Equal(one.Values, []float32{3, 4}) {
		t.Errorf("the row after a delete and a push is %v, %v, want [3 4]", one.Values, err)
	}

	if err := l.Drop(user.ID); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"pull":   l.Pull(t.Context(), []Segment{seg}),
		"delete": l.Delete(user.ID, keys),
		"scan":   l.Scan(user.ID, nil),
		"drop":   l.Drop(user.ID),
	} {
		if rowraft.CodeOf(err) != rowraft.CodeTableNotFound {
			t.Errorf("%s of a table that was dropped: %v, want CodeTableNotFound", name, err)
		}
	}
	if again, err := l.Create(schema, false); err != nil || again.ID == user.ID || l.Len(again.ID) != 0 {
		t.Errorf("a later table of the name: id %d, %d rows, %v; the first one had id %d", again.ID, l.Len(again.ID), err,
			user.ID)
	}
}
