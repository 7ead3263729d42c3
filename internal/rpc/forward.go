package rpc

import (
	"context"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// A client that cannot reach the leader of a shard or of the scheduler, while a follower can, asks the
// follower to forward its call: it sets askHeader. The follower makes the same call to the leader, as
// itself, and names the caller in behalfHeader: the expiry time of the caller's certificate in nanoseconds
// since 1970, a space, and the identity in the form of the certificate; or "-" if the ports are plaintext.
// The leader accepts this header only from servers, and treats the call like one of the caller. It never
// forwards such a call again.
const (
	askHeader    = "rowraft-forward"
	behalfHeader = "rowraft-on-behalf"
	noIdentity   = "-"
)

// forwarded are the calls that servers forward, each with its reply type.
var forwarded = map[string]func() any{
	rowraftv1.Table_Pull_FullMethodName:               func() any { return new(rowraftv1.PullReply) },
	rowraftv1.Table_Write_FullMethodName:              func() any { return new(rowraftv1.WriteReply) },
	rowraftv1.Table_OpenSession_FullMethodName:        func() any { return new(rowraftv1.OpenSessionReply) },
	rowraftv1.Cluster_IssueIncarnation_FullMethodName: func() any { return new(rowraftv1.IssueIncarnationReply) },
	rowraftv1.Table_CloseSession_FullMethodName:       func() any { return new(rowraftv1.CloseSessionReply) },
	rowraftv1.Table_PushStep_FullMethodName:           func() any { return new(rowraftv1.PushStepReply) },
	rowraftv1.Table_WaitClock_FullMethodName:          func() any { return new(rowraftv1.WaitClockReply) },
}

// AskForward returns ctx for a call that the server may forward to the leader.
func AskForward(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, askHeader, "1")
}

// ForwardReply returns an empty reply for the call of ctx if the caller asks to forward it and the call can
// be forwarded; nil otherwise.
func ForwardReply(ctx context.Context, method string) any {
	reply := forwarded[method]
	if reply == nil || len(metadata.ValueFromIncomingContext(ctx, askHeader)) == 0 ||
		len(metadata.ValueFromIncomingContext(ctx, behalfHeader)) > 0 {
		return nil
	}
	return reply()
}

// OnBehalf returns ctx for the call to the leader on behalf of the caller of ctx.
func OnBehalf(ctx context.Context) context.Context {
	said := noIdentity
	if c := CallerOf(ctx); c != nil {
		said = strconv.FormatInt(c.expires.UnixNano(), 10) + " " + c.Text()
	}
	return metadata.AppendToOutgoingContext(ctx, behalfHeader, said)
}

// parseBehalf parses behalfHeader; a nil Caller has no certificate.
func parseBehalf(said string) (*Caller, error) {
	if said == noIdentity {
		return nil, nil
	}
	ends, text, _ := strings.Cut(said, " ")
	ns, err := strconv.ParseInt(ends, 10, 64)
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"%s: %q: want the expiry time of a certificate and an identity", behalfHeader, said)
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "%s: %w", behalfHeader, err)
	}
	id, err := certs.ParseIdentity(u)
	if err != nil {
		return nil, err
	}
	return &Caller{id, time.Unix(0, ns)}, nil
}

type callerKey struct{}

// represented returns the caller for which a server makes the call, and ctx with that caller. Without such
// a caller it returns ctx and c. c is the direct caller, nil without certificates.
func represented(ctx context.Context, c *Caller, method string) (context.Context, *Caller, error) {
	said := metadata.ValueFromIncomingContext(ctx, behalfHeader)
	if len(said) == 0 {
		return ctx, c, nil
	}
	deny := func(need string) (context.Context, *Caller, error) {
		have := "no role: the port is plaintext"
		if c != nil {
			have = c.String()
		}
		return nil, nil, &rowraft.DeniedError{What: "a call on behalf of another", Need: need, Have: have}
	}
	if c != nil && c.Role != certs.Server {
		return deny(string(certs.Server))
	}
	if err := c.current(); err != nil {
		return nil, nil, err
	}
	if len(said) != 1 || forwarded[method] == nil {
		return nil, nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"%s on behalf of %d callers: want one caller, and a call that servers forward",
			strings.TrimPrefix(method, "/rowraft.v1."), len(said))
	}
	of, err := parseBehalf(said[0])
	switch {
	case err != nil:
		return nil, nil, err
	case (of == nil) != (c == nil):
		return deny(string(certs.Server) + " and an identity, or neither")
	case of == nil:
		return ctx, nil, nil
	case of.Cluster != c.Cluster:
		return deny(string(certs.Server) + " of the caller's cluster " + of.Cluster)
	}
	return context.WithValue(ctx, callerKey{}, of), of, nil
}
