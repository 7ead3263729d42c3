package scheduler

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/identity"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/internal/vfs"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// A server whose certificates are of another CA than those of all servers that answer ends. If only one of two differs,
// that one may be wrong: the server waits and says why.
func TestAServerOfAnotherCAEnds(t *testing.T) {
	const refusal = `connection error: desc = "transport: authentication handshake failed: the server's certificate, of ` +
		`node n1 in cluster ads, signed by CA "x" (key 01), is not signed by a CA in ca.pem, which has CA "y" (key 02)"`
	for _, tc := range []struct {
		name   string
		errs   [2]error // of the two other servers
		code   rowraft.Code
		within time.Duration
	}{
		{"both", [2]error{errors.New(refusal), errors.New(refusal)}, rowraft.CodeDenied, 12 * time.Second},
		{"one, and one is down", [2]error{errors.New(refusal), errors.New("connection refused")}, rowraft.CodeDeadline, 0},
		{"one of two", [2]error{errors.New(refusal), nil}, rowraft.CodeDeadline, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir, err := identity.Open(vfs.OS, filepath.Join(t.TempDir(), "d"))
				if err != nil {
					t.Fatal(err)
				}
				defer dir.Close()
				var logs bytes.Buffer
				self := dir.Identity().Node
				join := []string{"n1:1", "n2:1", "n3:1"}
				s, err := New(Options{Identity: dir, Join: join,
					Self:   clustermap.Node{ID: self, Addr: "n3:1", PeerAddr: "p3:1", Scheduler: true},
					Logger: slog.New(slog.NewTextHandler(&logs, nil))})
				if err != nil {
					t.Fatal(err)
				}
				s.hello = func(_ context.Context, addr string, _ *rowraftv1.HelloRequest) (*rowraftv1.HelloReply, error) {
					switch addr {
					case "n1:1":
						return &rowraftv1.HelloReply{NodeId: "n1", Addr: addr, Scheduler: true, Join: join}, tc.errs[0]
					case "n2:1":
						return &rowraftv1.HelloReply{NodeId: "n2", Addr: addr, Scheduler: true, Join: join}, tc.errs[1]
					}
					return &rowraftv1.HelloReply{NodeId: string(self), Addr: addr, Scheduler: true, Join: join}, nil
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				begin := time.Now()
				_, err = s.Form(ctx)
				if took := time.Since(begin); tc.within > 0 && took > tc.within {
					t.Errorf("it took %v", took)
				}
				if tc.code == rowraft.CodeDenied {
					testutil.WantCode(t, err, tc.code, `CA "x"`, `CA "y"`, "n2:1")
				} else if err == nil || ctx.Err() == nil {
					t.Errorf("it ended: %v", err)
				}
				if out := logs.String(); !strings.Contains(out, "level=WARN") || !strings.Contains(out, `which has CA \"y\"`) {
					t.Errorf("the log does not say why:\n%s", out)
				}
			})
		})
	}
}
