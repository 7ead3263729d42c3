package rpc

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/rowraft/rowraft/internal/certs"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// arrived returns the context of a call over a connection of c, with the metadata that the call to the
// other server carries.
func arrived(who *Caller, sent context.Context) context.Context {
	p := &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9}}
	if who != nil {
		p.AuthInfo = &authInfo{caller: *who, client: who.Tag()}
	}
	ctx := peer.NewContext(context.Background(), p)
	if md, ok := metadata.FromOutgoingContext(sent); ok {
		ctx = metadata.NewIncomingContext(ctx, md)
	}
	return ctx
}

// TestAForwardedCallIsTheClients: a leader authorizes and counts a forwarded call as a call of
// the client that the follower serves.
func TestAForwardedCallIsTheClients(t *testing.T) {
	tom := &Caller{certs.Identity{Cluster: "lab", Role: certs.Trainer, Name: "tom", Tables: []string{"mine", "my_*"}},
		time.Now().Add(time.Hour)}
	server := &Caller{certs.Identity{Cluster: "lab", Role: certs.Server, Name: "n1"}, time.Now().Add(time.Hour)}
	const push = rowraftv1.Table_Write_FullMethodName
	direct, err := authorize(arrived(tom, context.Background()), push)
	if err != nil {
		t.Fatal(err)
	}
	there, err := authorize(arrived(server, OnBehalf(direct)), push)
	if err != nil {
		t.Fatal(err)
	}
	got := CallerOf(there)
	if got == nil || got.Text() != tom.Text() || !got.expires.Equal(tom.expires) {
		t.Errorf("the leader sees %+v, want %+v", got, tom)
	}
	want, _ := ClientOf(direct)
	if client, _ := ClientOf(there); client != want {
		t.Errorf("the leader charges %v, the follower %v", client, want)
	}
	asks := func(ctx context.Context) bool { return ForwardReply(ctx, push) != nil }
	if !asks(arrived(tom, AskForward(context.Background()))) || asks(direct) ||
		asks(arrived(server, AskForward(OnBehalf(direct)))) {
		t.Error("a call is forwarded if its caller asks for it, and once")
	}
	if ForwardReply(arrived(tom, AskForward(context.Background())), rowraftv1.Table_Scan_FullMethodName) != nil {
		t.Error("a scan is forwarded")
	}
	// Without certificates there are no identities.
	plain, err := authorize(arrived(nil, OnBehalf(arrived(nil, context.Background()))), push)
	if err != nil || CallerOf(plain) != nil {
		t.Errorf("a forwarded call without certificates: %+v, %v", CallerOf(plain), err)
	}
}

func FuzzBehalf(f *testing.F) {
	f.Add("-")
	f.Add("1893456000000000000 rowraft://lab/trainer/tom?table=mine&table=my_%2A")
	f.Add("")
	f.Add("ann")
	f.Add("x rowraft://lab/admin/ann")
	f.Add("1 rowraft://lab/admin/ann?table=x")
	f.Fuzz(func(t *testing.T, said string) {
		c, err := parseBehalf(said)
		if err != nil || c == nil {
			if err == nil && said != noIdentity {
				t.Errorf("%q names no caller", said)
			}
			return
		}
		md, _ := metadata.FromOutgoingContext(OnBehalf(context.WithValue(context.Background(), callerKey{}, c)))
		again, err := parseBehalf(md.Get(behalfHeader)[0])
		if err != nil || again.Text() != c.Text() || !again.expires.Equal(c.expires) {
			t.Errorf("%q is %+v, and encoded again %+v, %v", said, c, again, err)
		}
	})
}
