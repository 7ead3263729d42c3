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

// A client that cannot reach the leader of a shard, or of the scheduler, while a follower can, asks the follower
// to forward: it sets askHeader. The follower makes the same call to the leader, as itself,
// and names the caller in behalfHeader: when the caller's certificate ends, in nanoseconds
// since 1970, a space, and the identity as it stands in the certificate; or "-" if the ports
// are plaintext. The leader takes that from servers only, and treats the call in every way
// as one of the caller. It never forwards such a call again.
const (
	askHeader    = "rowraft-forward"
	behalfHeader = "rowraft-on-behalf"
	noIdentity   = "-"
)

// forwarded are the calls that servers forward, each with its reply.
var forwarded = map[string]func() any{
	rowraftv1.Table_Pull_FullMethodName:               func() any { return new(rowraftv1.PullReply) },
	rowraftv1.Table_Write_FullMethodName:              func() any { return new(rowraftv1.WriteReply) },
	rowraftv1.Table_OpenSession_FullMethodName:        func() any { return new(rowraftv1.OpenSessionReply) },
	rowraftv1.Cluster_IssueIncarnation_FullMethodName: func() any { return new(rowraftv1.IssueIncarnationReply) },
	rowraftv1.Table_CloseSession_FullMethodName:       func() any { return new(rowraftv1.CloseSessionReply) },
	rowraftv1.Table_PushStep_FullMethodName:           func() any { return new(rowraftv1.PushStepReply) },
	rowraftv1.Table_WaitClock_FullMethodName:          func() any { return new(rowraftv1.WaitClockReply) },
}

// AskForward is ctx for calls that the server may forward to the leader.
func AskForward(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, askHeader, "1")
}

// ForwardReply returns an empty reply for the call of ctx if its caller asks to have it
// forwarded, and it can be; nil otherwise.
func ForwardReply(ctx context.Context, method string) any {
	reply := forwarded[method]
	if reply == nil || len(metadata.ValueFromIncomingContext(ctx, askHeader)) == 0 || len(metadata.ValueFromIncomingContext(ctx, behalfHeader)) > 0 {
		return nil
	}
	return reply()
}

// OnBehalf is ctx for the call to the leader on behalf of the caller of ctx.
func OnBehalf(ctx context.Context) context.Context {
	said := noIdentity
	if c := CallerOf(ctx); c != nil {
		said = strconv.FormatInt(c.expires.UnixNano(), 10) + " " + c.Text()
	}
	return metadata.AppendToOutgoingContext(ctx, behalfHeader, said)
}

// parseBehalf reads behalfHeader; a nil Caller is one without a certificate.
//
// Errors: CodeInvalidArgument.
func parseBehalf(said string) (*Caller, error) {
	if said == noIdentity {
		return nil, nil
	}
	ends, text, _ := strings.Cut(said, " ")
	ns, err := strconv.ParseInt(ends, 10, 64)
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "%s: %q: want the end of a certificate and an identity", behalfHeader, said)
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

// represented returns ctx with the caller that a server makes the call for, and that caller;
// ctx and c themselves if nobody is represented. c makes the call, nil without certificates.
//
// Errors: *rowraft.DeniedError, CodeInvalidArgument.
func represented(ctx context.Context, c *Caller, method string) (context.Context, *Caller, error) {
	said := metadata.ValueFromIncomingContext(ctx, behalfHeader)
	if len(said) == 0 {
		return ctx, c, nil
	}
	deny := func(need string) (context.Context, *Caller, error) {
		have := "nobody: the port is plaintext"
		if c != nil {
			have = c.String()
		}
		return nil, nil, &rowraft.DeniedError{What: "a call on behalf of another", Need: need, Have: have}
	}
	if c != nil && c.Role != certs.Node {
		return deny(string(certs.Node))
	}
	if err := c.current(); err != nil {
		return nil, nil, err
	}
	if len(said) != 1 || forwarded[method] == nil {
		return nil, nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "%s on behalf of %d callers: want one, and a call that servers forward", strings.TrimPrefix(method, "/rowraft.v1."), len(said))
	}
	of, err := parseBehalf(said[0])
	switch {
	case err != nil:
		return nil, nil, err
	case (of == nil) != (c == nil):
		return deny(string(certs.Node) + " and an identity, or neither")
	case of == nil:
		return ctx, nil, nil
	case of.Cluster != c.Cluster:
		return deny(string(certs.Node) + " of the caller's cluster " + of.Cluster)
	}
	return context.WithValue(ctx, callerKey{}, of), of, nil
}
