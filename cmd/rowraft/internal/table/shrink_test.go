package table

import (
	"testing"

	"google.golang.org/protobuf/proto"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func TestShrinkConditions(t *testing.T) {
	seconds := func(n uint32) *uint32 { return &n }
	for _, tc := range []struct {
		name  string
		flags shrinkFlags
		given string
		want  *rowraftv1.SweepConditions // nil: refused
	}{
		{"a duration", shrinkFlags{unseen: "168h"}, "unseen", &rowraftv1.SweepConditions{UnseenTicks: seconds(604800)}},
		{"seconds", shrinkFlags{unseen: "90"}, "unseen", &rowraftv1.SweepConditions{UnseenTicks: seconds(90)}},
		{"at once", shrinkFlags{unseen: "0s"}, "unseen", &rowraftv1.SweepConditions{UnseenTicks: seconds(0)}},
		{"a count", shrinkFlags{count: 2}, "count-below", &rowraftv1.SweepConditions{CountBelow: 2}},
		{"a norm", shrinkFlags{norm: 0.5}, "norm-below", &rowraftv1.SweepConditions{NormBelow: 0.5}},
		{"nothing", shrinkFlags{}, "", nil},
		{"half a second", shrinkFlags{unseen: "500ms"}, "unseen", nil},
		{"no time", shrinkFlags{unseen: "week"}, "unseen", nil},
		{"fewer than 0 pushes", shrinkFlags{}, "count-below", nil},
		{"a norm below 0", shrinkFlags{norm: -1}, "norm-below", nil},
	} {
		got, err := tc.flags.conditions(func(name string) bool { return name == tc.given })
		if (err == nil) != (tc.want != nil) || err == nil && !proto.Equal(got, tc.want) {
			t.Errorf("%s: %v, %v, want %v", tc.name, got, err, tc.want)
		}
	}
}
