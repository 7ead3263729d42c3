package tables

import (
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
)

func TestReadConfig(t *testing.T) {
	own := client.Position{Epoch: 3, Shards: map[rowraft.ShardID]rowraft.Index{1: 9}}
	for _, tc := range []struct {
		conf ReadConfig
		want *client.Read // nil: invalid
	}{
		{ReadConfig{}, &client.Read{}},
		{ReadConfig{Mode: "leader"}, &client.Read{}},
		{ReadConfig{Mode: "linearizable"}, &client.Read{Mode: client.Linearizable}},
		{ReadConfig{Mode: "bounded"}, &client.Read{Mode: client.Bounded, MaxAge: 10 * time.Second}},
		{ReadConfig{Mode: "bounded", MaxAge: time.Second, MaxLag: 7},
			&client.Read{Mode: client.Bounded, MaxAge: time.Second, MaxLag: 7}},
		{ReadConfig{Mode: "any"}, nil},
		{ReadConfig{Mode: "bounded", MaxAge: -1}, nil},
		{ReadConfig{MaxAge: time.Second}, nil},
		{ReadConfig{Mode: "linearizable", MaxLag: 1}, nil},
	} {
		err := tc.conf.Validate()
		if tc.want == nil {
			if rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
				t.Errorf("%+v: %v, want InvalidArgument", tc.conf, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", tc.conf, err)
			continue
		}
		got := tc.conf.how(func() client.Position { return own })
		if got.Mode != tc.want.Mode || got.MaxAge != tc.want.MaxAge || got.MaxLag != tc.want.MaxLag {
			t.Errorf("%+v reads %+v, want %+v", tc.conf, got, *tc.want)
		}
		// A follower must have the trainer's own pushes; for leaders the client requires it.
		if got.Mode == client.Bounded && (got.AtLeast.Epoch != 3 || got.AtLeast.Shards[1] != 9) {
			t.Errorf("%+v does not ask for the trainer's own pushes: %+v", tc.conf, got)
		}
	}
}
