package route

import (
	"context"
	"testing"

	"google.golang.org/grpc/connectivity"

	"github.com/rowraft/rowraft"
)

func TestPool(t *testing.T) {
	p := NewPool(nil, nil, 2)
	first, err := p.Get("127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	second, _ := p.Get("127.0.0.1:1")
	third, _ := p.Get("127.0.0.1:1")
	if first == second || first != third || len(p.All("127.0.0.1:1")) != 2 {
		t.Error("two connections per address are not handed out in turn")
	}
	p.Reach(context.Background(), "127.0.0.1:2") // never asked for: nothing to open
	if err := p.Forget("127.0.0.1:1"); err != nil {
		t.Error(err)
	}
	if first.GetState() != connectivity.Shutdown || second.GetState() != connectivity.Shutdown {
		t.Error("Forget left a connection open")
	}
	again, err := p.Get("127.0.0.1:1")
	if err != nil || again == first || again == second {
		t.Errorf("after Forget the pool returned an old connection, or %v", err)
	}
	if err := p.Close(); err != nil || again.GetState() != connectivity.Shutdown {
		t.Errorf("Close: %v, the connection is in state %v", err, again.GetState())
	}
	if _, err := p.Get("127.0.0.1:1"); rowraft.CodeOf(err) != rowraft.CodeClosing {
		t.Errorf("Get of a closed pool: %v, want CodeClosing", err)
	}
}
