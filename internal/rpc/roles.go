package rpc

import (
	"context"
	"crypto/x509"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
)

// Who may call what. Within a call, a trainer and a reader touch their tables only
// (Caller.May); an admin, who may call everything that is not between servers, is in
// each list so that it can be read by itself.
var (
	anybody   = []certs.Role{certs.Admin, certs.Operator, certs.Trainer, certs.Reader, certs.Node}
	readers   = []certs.Role{certs.Admin, certs.Trainer, certs.Reader}
	trainers  = []certs.Role{certs.Admin, certs.Trainer}
	operators = []certs.Role{certs.Admin, certs.Operator}
	runs      = []certs.Role{certs.Admin, certs.Operator, certs.Trainer}
	watchers  = []certs.Role{certs.Admin, certs.Operator, certs.Node}
	admins    = []certs.Role{certs.Admin}
	servers   = []certs.Role{certs.Node}
	entrants  = []certs.Role{Stranger, certs.Node} // who has no certificate yet, and a server that passes it on
)

// roles says who may make each call of each service. A call that is not here is
// refused to everybody, and fails TestEveryCallDeclaresItsRoles.
var roles = map[string][]certs.Role{
	"/rowraft.v1.Table/Pull":         readers,
	"/rowraft.v1.Table/Scan":         readers,
	"/rowraft.v1.Table/Write":        trainers,
	"/rowraft.v1.Table/PushStep":     trainers,
	"/rowraft.v1.Table/WaitClock":    trainers,
	"/rowraft.v1.Table/OpenSession":  trainers,
	"/rowraft.v1.Table/CloseSession": trainers,

	"/rowraft.v1.Cluster/Hello":            anybody,
	"/rowraft.v1.Cluster/GetMap":           anybody,
	"/rowraft.v1.Cluster/Status":           anybody,
	"/rowraft.v1.Cluster/RegisterNode":     servers,
	"/rowraft.v1.Cluster/Heartbeat":        servers,
	"/rowraft.v1.Cluster/CreateTable":      trainers,
	"/rowraft.v1.Cluster/DropTable":        admins,
	"/rowraft.v1.Cluster/IssueIncarnation": trainers,
	"/rowraft.v1.Cluster/JoinJob":          trainers,
	"/rowraft.v1.Cluster/MoveReplica":      operators,
	"/rowraft.v1.Cluster/CancelMove":       operators,
	"/rowraft.v1.Cluster/ChangeNode":       operators,

	"/rowraft.v1.Replicas/EnsureTable":    servers,
	"/rowraft.v1.Replicas/DropShardTable": servers,
	"/rowraft.v1.Replicas/EnsureJob":      servers,
	"/rowraft.v1.Replicas/EndJob":         servers,
	"/rowraft.v1.Replicas/ChangeMembers":  servers,
	"/rowraft.v1.Replicas/ReadIndex":      servers,
	"/rowraft.v1.Replicas/WritePart":      servers,
	"/rowraft.v1.Replicas/RestorePart":    servers,
	"/rowraft.v1.Replicas/SweepSlots":     servers,
	"/rowraft.v1.Replicas/JobState":       watchers,
	"/rowraft.v1.Replicas/NodeStatus":     watchers,
	"/rowraft.v1.Replicas/Digest":         watchers,
	"/rowraft.v1.Replicas/NotedDigest":    watchers,
	"/rowraft.v1.Replicas/Prove":          watchers,
	"/rowraft.v1.Replicas/Members":        watchers,
	"/rowraft.v1.Replicas/TransferLeader": watchers,

	"/rowraft.v1.Checkpoints/CreateCheckpoint":  operators,
	"/rowraft.v1.Checkpoints/RestoreCheckpoint": admins,
	"/rowraft.v1.Checkpoints/Attend":            trainers,
	"/rowraft.v1.Checkpoints/SendState":         trainers,
	"/rowraft.v1.Checkpoints/SetPolicy":         runs, // a job may have one
	"/rowraft.v1.Checkpoints/DeletePolicy":      runs,
	"/rowraft.v1.Checkpoints/ListPolicies":      runs,
	"/rowraft.v1.Checkpoints/RunPolicy":         operators,

	"/rowraft.v1.Sweeps/ShrinkTable": operators,

	"/rowraft.v1.Jobs/Enter":       trainers,
	"/rowraft.v1.Jobs/Leave":       trainers,
	"/rowraft.v1.Jobs/Renew":       trainers,
	"/rowraft.v1.Jobs/NextPart":    trainers,
	"/rowraft.v1.Jobs/EndPart":     trainers,
	"/rowraft.v1.Jobs/ListJobs":    anybody,
	"/rowraft.v1.Jobs/DescribeJob": anybody,
	"/rowraft.v1.Jobs/StopJob":     runs,
	"/rowraft.v1.Jobs/DeleteJob":   runs,

	"/rowraft.v1.Entrance/Join":                 entrants, // the only call of strangers
	"/rowraft.v1.Certificates/CreateToken":      admins,
	"/rowraft.v1.Certificates/ListTokens":       admins,
	"/rowraft.v1.Certificates/DeleteToken":      admins,
	"/rowraft.v1.Certificates/RenewCertificate": anybody, // its own

	"/grpc.health.v1.Health/Check": anybody,
	"/grpc.health.v1.Health/Watch": anybody,
	"/grpc.health.v1.Health/List":  anybody,

	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      operators,
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": operators,
}

// RolesOf lists who may make a call, by its full name; nil: nobody.
func RolesOf(method string) []certs.Role { return slices.Clone(roles[method]) }

// Caller is who makes a call. Everything is allowed to a nil one: it is this process,
// or the port is plaintext and so of loopback.
type Caller struct {
	certs.Identity
	expires time.Time
}

// CallerOf returns who makes the call of ctx: of a forwarded one the client, not the server
// that forwards it.
func CallerOf(ctx context.Context) *Caller {
	if c, ok := ctx.Value(callerKey{}).(*Caller); ok {
		return c
	}
	return connectedCaller(ctx)
}

// connectedCaller is whose connection the call of ctx came by.
func connectedCaller(ctx context.Context) *Caller {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	info, ok := p.AuthInfo.(*authInfo)
	if !ok {
		return nil
	}
	return &info.caller
}

// ClientOf tells by which bytes in flight are counted: client is whose the call of ctx
// is, an identity with all of its connections or, without certificates, a connection;
// conn is the connection, as ConnKey has it. Both can be compared; nil is this process.
func ClientOf(ctx context.Context) (client, conn any) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, nil
	}
	conn = ConnKey(p.Addr)
	if c, ok := ctx.Value(callerKey{}).(*Caller); ok {
		return c.Tag(), conn
	}
	if info, ok := p.AuthInfo.(*authInfo); ok {
		return info.client, conn
	}
	return conn, conn
}

// ConnKey names a connection by its RemoteAddr, as long as it is open.
func ConnKey(remote net.Addr) any {
	if tcp, ok := remote.(*net.TCPAddr); ok {
		return tcp // each connection has its own
	}
	return remote.String()
}

// Limited reports whether the caller may touch some tables only.
func (c *Caller) Limited() bool { return c != nil && !c.Everything() }

// Certificate is the caller's, nil if the call came without TLS.
func Certificate(ctx context.Context) *x509.Certificate {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(*authInfo); ok && len(info.State.PeerCertificates) > 0 {
			return info.State.PeerCertificates[0]
		}
	}
	return nil
}

// CheckTable refuses a table that is not the caller's, with a *rowraft.DeniedError.
func (c *Caller) CheckTable(name string) error {
	if c == nil || c.May(name) {
		return nil
	}
	return &rowraft.DeniedError{
		What: "table " + name, Need: string(certs.Admin) + " or " + string(c.Role) + " with this table",
		Have: c.String() + " with the tables " + strings.Join(c.Tables, ", "),
	}
}

// CheckClient refuses a client id that is not the caller's: another identity cannot
// push in its sessions.
func (c *Caller) CheckClient(id rowraft.ClientID) error {
	if c == nil {
		return nil
	}
	if tag := c.Tag(); [len(tag)]byte(id[:len(tag)]) != tag {
		return &rowraft.DeniedError{What: "a session of another identity", Need: "and name that opened it", Have: c.String()}
	}
	return nil
}

// current refuses a caller whose certificate has ended since the handshake.
func (c *Caller) current() error {
	if c != nil && time.Now().After(c.expires) {
		return rowraft.Errorf(rowraft.CodeDenied, "the certificate of %s expired at %s", c.String(), c.expires.Format(time.RFC3339))
	}
	return nil
}

// authorize refuses a call that the caller's role does not have. The context that it returns
// knows the caller of a forwarded call.
func authorize(ctx context.Context, method string) (context.Context, error) {
	ctx, c, err := represented(ctx, connectedCaller(ctx), method)
	if err != nil || c == nil {
		return ctx, err
	}
	if may := roles[method]; !slices.Contains(may, c.Role) {
		need := certs.Join(may)
		if len(may) == 0 {
			need = "of nobody"
		}
		return ctx, &rowraft.DeniedError{What: strings.TrimPrefix(method, "/rowraft.v1."), Need: need, Have: c.String()}
	}
	return ctx, c.current()
}

func unaryRoles(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
	ctx, err := authorize(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	return h(ctx, req)
}

func streamRoles(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) error {
	if _, err := authorize(s.Context(), info.FullMethod); err != nil {
		return err
	}
	return h(srv, s)
}
