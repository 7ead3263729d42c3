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

// Role lists for the table below. Within a call, a trainer and a reader may use only their tables
// (Caller.May). An admin may make every call that is not between servers; it is in each list, so that each
// list is complete.
var (
	anybody   = []certs.Role{certs.Admin, certs.Operator, certs.Trainer, certs.Reader, certs.Server}
	readers   = []certs.Role{certs.Admin, certs.Trainer, certs.Reader}
	trainers  = []certs.Role{certs.Admin, certs.Trainer}
	operators = []certs.Role{certs.Admin, certs.Operator}
	runs      = []certs.Role{certs.Admin, certs.Operator, certs.Trainer}
	watchers  = []certs.Role{certs.Admin, certs.Operator, certs.Server}
	admins    = []certs.Role{certs.Admin}
	servers   = []certs.Role{certs.Server}
	// a machine without a certificate, and a server that forwards its call
	entrants = []certs.Role{Stranger, certs.Server}
)

// roles lists the roles that may make each call of each service. A call that is not in the list is refused
// to every caller, and fails TestEveryCallDeclaresItsRoles.
var roles = map[string][]certs.Role{
	"/rowraft.v1.Table/Pull":         readers,
	"/rowraft.v1.Table/PullMany":     readers,
	"/rowraft.v1.Table/Scan":         readers,
	"/rowraft.v1.Table/Write":        trainers,
	"/rowraft.v1.Table/WriteMany":    trainers,
	"/rowraft.v1.Table/PushStep":     trainers,
	"/rowraft.v1.Table/PushStepMany": trainers,
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
	"/rowraft.v1.Cluster/MoveReplica":      operators,
	"/rowraft.v1.Cluster/CancelMove":       operators,
	"/rowraft.v1.Cluster/ChangeNode":       operators,

	"/rowraft.v1.Replicas/EnsureTable":    servers,
	"/rowraft.v1.Replicas/DropShardTable": servers,
	"/rowraft.v1.Replicas/EnsureJob":      servers,
	"/rowraft.v1.Replicas/EndJob":         servers,
	"/rowraft.v1.Replicas/ChangeMembers":  servers,
	"/rowraft.v1.Replicas/ReadIndex":      servers,
	"/rowraft.v1.Replicas/CopyRows":       servers,
	"/rowraft.v1.Replicas/HotRows":        servers,
	"/rowraft.v1.Replicas/WriteShardFile": servers,
	"/rowraft.v1.Replicas/RestoreShard":   servers,
	"/rowraft.v1.Replicas/SweepSlots":     servers,
	"/rowraft.v1.Replicas/JobState":       watchers,
	"/rowraft.v1.Replicas/NodeStatus":     watchers,
	"/rowraft.v1.Replicas/HotKeys":        watchers,
	"/rowraft.v1.Replicas/Digest":         watchers,
	"/rowraft.v1.Replicas/NotedDigest":    watchers,
	"/rowraft.v1.Replicas/Prove":          watchers,
	"/rowraft.v1.Replicas/Members":        watchers,
	"/rowraft.v1.Replicas/TransferLeader": watchers,

	"/rowraft.v1.Checkpoints/CreateCheckpoint":  operators,
	"/rowraft.v1.Checkpoints/RestoreCheckpoint": admins,
	"/rowraft.v1.Checkpoints/Attend":            trainers,
	"/rowraft.v1.Checkpoints/SendState":         trainers,
	"/rowraft.v1.Checkpoints/SetPolicy":         runs, // a job may have a policy
	"/rowraft.v1.Checkpoints/DeletePolicy":      runs,
	"/rowraft.v1.Checkpoints/ListPolicies":      runs,
	"/rowraft.v1.Checkpoints/RunPolicy":         runs, // a trainer: its own policy

	"/rowraft.v1.Sweeps/ShrinkTable": operators,

	"/rowraft.v1.Jobs/Enter":       trainers,
	"/rowraft.v1.Jobs/Leave":       trainers,
	"/rowraft.v1.Jobs/Renew":       trainers,
	"/rowraft.v1.Jobs/NextSplit":   trainers,
	"/rowraft.v1.Jobs/EndSplit":    trainers,
	"/rowraft.v1.Jobs/ReportScore": trainers,
	"/rowraft.v1.Jobs/ListJobs":    anybody,
	"/rowraft.v1.Jobs/DescribeJob": anybody,
	"/rowraft.v1.Jobs/StopJob":     runs,
	"/rowraft.v1.Jobs/DeleteJob":   runs,

	"/rowraft.v1.Entrance/Join":                 entrants, // the only call of strangers
	"/rowraft.v1.Certificates/CreateToken":      admins,
	"/rowraft.v1.Certificates/ListTokens":       admins,
	"/rowraft.v1.Certificates/DeleteToken":      admins,
	"/rowraft.v1.Certificates/RenewCertificate": anybody, // only its own certificate

	// rowraft-trainer serve has this one, not a server of the cluster
	"/rowraft.serving.v1.Scoring/Score": readers,

	"/grpc.health.v1.Health/Check": anybody,
	"/grpc.health.v1.Health/Watch": anybody,
	"/grpc.health.v1.Health/List":  anybody,

	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      operators,
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": operators,
}

// RolesOf returns the roles that may make a call, by its full name; nil: no role.
func RolesOf(method string) []certs.Role { return slices.Clone(roles[method]) }

// Caller is the identity that makes a call. A nil Caller may do everything: it is this process, or the port
// is plaintext and so on loopback.
type Caller struct {
	certs.Identity
	expires time.Time
}

// CallerOf returns the caller of ctx. For a forwarded call it is the client, not the server that forwards.
func CallerOf(ctx context.Context) *Caller {
	if c, ok := ctx.Value(callerKey{}).(*Caller); ok {
		return c
	}
	return connectedCaller(ctx)
}

// connectedCaller returns the identity of the connection of the call of ctx.
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

// ClientOf returns the keys by which bytes in flight are counted. client is an identity, with all its
// connections, or a connection if there are no certificates; conn is the connection, as returned by
// ConnKey. Both are comparable; nil means this process.
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

// ConnKey identifies a connection by its RemoteAddr while it is open.
func ConnKey(remote net.Addr) any {
	if tcp, ok := remote.(*net.TCPAddr); ok {
		return tcp // each connection has its own pointer
	}
	return remote.String()
}

// Limited reports whether the caller may use only some tables.
func (c *Caller) Limited() bool { return c != nil && !c.Everything() }

// Certificate returns the certificate of the caller, nil if the call came without TLS.
func Certificate(ctx context.Context) *x509.Certificate {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(*authInfo); ok && len(info.State.PeerCertificates) > 0 {
			return info.State.PeerCertificates[0]
		}
	}
	return nil
}

// CheckTable returns a *rowraft.DeniedError for a table that the caller may not use.
func (c *Caller) CheckTable(name string) error {
	if c == nil || c.May(name) {
		return nil
	}
	return &rowraft.DeniedError{
		What: "table " + name, Need: string(certs.Admin) + " or " + string(c.Role) + " with this table",
		Have: c.String() + " with the tables " + strings.Join(c.Tables, ", "),
	}
}

// CheckClient refuses a client id of another identity, so that no other identity can push in the caller's sessions.
func (c *Caller) CheckClient(id rowraft.ClientID) error {
	if c == nil {
		return nil
	}
	if tag := c.Tag(); [len(tag)]byte(id[:len(tag)]) != tag {
		return &rowraft.DeniedError{What: "a session of another identity", Need: "and name that opened it", Have: c.String()}
	}
	return nil
}

// current refuses a caller whose certificate has expired since the handshake.
func (c *Caller) current() error {
	if c != nil && time.Now().After(c.expires) {
		return rowraft.Errorf(rowraft.CodeDenied, "the certificate of %s expired at %s",
			c.String(), c.expires.Format(time.RFC3339))
	}
	return nil
}

// authorize refuses a call that the caller's role may not make. The returned context has the caller of a
// forwarded call.
func authorize(ctx context.Context, method string) (context.Context, error) {
	ctx, c, err := represented(ctx, connectedCaller(ctx), method)
	if err != nil || c == nil {
		return ctx, err
	}
	if may := roles[method]; !slices.Contains(may, c.Role) {
		need := certs.Join(may)
		if len(may) == 0 {
			need = "of no role"
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
