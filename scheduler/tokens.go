package scheduler

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"net"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// Defaults of a request for a token.
const (
	defaultTokenTTL = time.Hour
	defaultCertLife = 90 * 24 * time.Hour
	joinTimeout     = 20 * time.Second
)

// Certificates implements the services of join tokens: Certificates for callers with a certificate, and Entrance for
// callers without one.
type Certificates struct {
	rowraftv1.UnimplementedCertificatesServer
	rowraftv1.UnimplementedEntranceServer
	*group

	strangers rpc.Throttle
}

// Certificates returns the services of join tokens.
func (s *Scheduler) Certificates() *Certificates { return s.certificates }

// errToken is the only error for a token that is refused, so that a caller cannot find out what is wrong with it.
func errToken() error {
	return rowraft.Errorf(rowraft.CodeDenied, "the token is refused: it is unknown, has expired, is used up, or is for "+
		"another name; `rowraft token list` shows an admin which tokens there are")
}

// signer returns the CA whose key this server has.
func (c *Certificates) signer() (*certs.CA, error) {
	if c.opts.CA == nil {
		return nil, rowraft.Errorf(rowraft.CodePrecondition, "the leader of the scheduler (%s) has no key to sign "+
			"certificates with: start each server with a scheduler with --ca-key, or make certificates with `rowraft cert` "+
			"where the key is", c.opts.Self.Addr)
	}
	return c.opts.CA, nil
}

// CreateToken creates a token and returns it with its secret, which the cluster does not store.
func (c *Certificates) CreateToken(ctx context.Context,
	req *rowraftv1.CreateTokenRequest) (*rowraftv1.CreateTokenReply, error) {
	if _, err := c.leadingInSync(ctx); err != nil {
		return nil, err
	}
	ca, err := c.signer()
	if err != nil {
		return nil, err
	}
	secret, err := certs.NewToken(ca.Cert)
	if err != nil {
		return nil, err
	}
	ask, ttl := req.GetToken(), time.Duration(req.GetTtlNs())
	if ttl == 0 {
		ttl = defaultTokenTTL
	}
	if ttl < 0 || ttl > meta.MaxTokenTTL {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "a token that is good for %v: want %v to %v", ttl,
			meta.MinTokenTTL, meta.MaxTokenTTL)
	}
	now := time.Now()
	t := &rowraftv1.JoinToken{
		Id: secret.ID, Role: ask.GetRole(), Name: ask.GetName(), Tables: ask.GetTables(), Uses: max(ask.GetUses(), 1),
		ValidNs:   ask.GetValidNs(),
		CreatedNs: uint64(now.UnixNano()), ExpiresNs: uint64(now.Add(ttl).UnixNano()),
	}
	if t.ValidNs == 0 {
		t.ValidNs = uint64(defaultCertLife)
	}
	if caller := rpc.CallerOf(ctx); caller != nil {
		t.CreatedBy = caller.String()
	}
	hash := certs.TokenHash(secret.ID, secret.Secret[:])
	m := &meta.JoinToken{Token: t, SecretSha256: hash[:]}
	if err := meta.CheckToken(m); err != nil {
		return nil, err
	}
	if _, err := c.propose(ctx,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_CreateToken{
			CreateToken: &rowraftv1.MetaCreateToken{Token: m}}}); err != nil {
		return nil, err
	}
	c.logger.Info("a join token was made", "token", t.Id, "role", t.Role, "name", t.Name, "uses", t.Uses, "expires",
		now.Add(ttl), "by", t.CreatedBy)
	return &rowraftv1.CreateTokenReply{Token: t, Secret: secret.String()}, nil
}

// ListTokens returns all tokens, without their secrets.
func (c *Certificates) ListTokens(ctx context.Context,
	_ *rowraftv1.ListTokensRequest) (*rowraftv1.ListTokensReply, error) {
	if _, err := c.leadingInSync(ctx); err != nil {
		return nil, err
	}
	reply := &rowraftv1.ListTokensReply{}
	for _, t := range c.machine.Tokens() {
		reply.Tokens = append(reply.Tokens, t.GetToken())
	}
	return reply, nil
}

// DeleteToken deletes a token.
func (c *Certificates) DeleteToken(ctx context.Context,
	req *rowraftv1.DeleteTokenRequest) (*rowraftv1.DeleteTokenReply, error) {
	if _, err := c.leadingInSync(ctx); err != nil {
		return nil, err
	}
	reply := &rowraftv1.DeleteTokenReply{}
	for _, t := range c.machine.Tokens() {
		if t.GetToken().GetId() == req.GetId() {
			reply.Token = t.GetToken()
		}
	}
	_, err := c.propose(ctx,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_DeleteToken{
			DeleteToken: &rowraftv1.MetaDeleteToken{Id: req.GetId()}}})
	return reply, err
}

// Join signs a certificate for a caller with a token. A server that does not lead forwards the call of a caller without
// a certificate to the leader, because that caller does not know the leader's address.
func (c *Certificates) Join(ctx context.Context, req *rowraftv1.JoinRequest) (*rowraftv1.JoinReply, error) {
	stranger := c.stranger(ctx)
	if stranger != nil && !c.strangers.Allow(stranger, time.Now()) {
		return nil, rowraft.Errorf(rowraft.CodeOverloaded, "too many tries to join from %s: wait a minute", stranger)
	}
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	if _, err := c.leadingInSync(ctx); err != nil {
		if leader := c.leaderAddr(); stranger != nil && leader != "" {
			return c.passOn(ctx, leader, req)
		}
		return nil, rowraft.Errorf(rowraft.CodeStarting, "the scheduler has no leader that this server knows")
	}
	ca, err := c.signer()
	if err != nil {
		return nil, err
	}
	asked, err := certs.ParseRequest(req.GetRequest())
	if err != nil {
		return nil, err
	}
	t := c.machine.TokenOf(req.GetToken(), req.GetSecret())
	if t == nil {
		c.logger.Warn("a machine with a wrong token was refused", "remote", stranger, "name", asked.Name)
		return nil, errToken()
	}
	if asked.Name == "" {
		asked.Name = t.GetName()
	}
	if asked.Name == "" {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "the token is for servers of any name: give --name")
	}
	if certs.Role(t.GetRole()) == certs.Server && len(asked.Hosts) == 0 {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"a server that joins must say at which addresses it is reached")
	}
	der, err := x509.MarshalPKIXPublicKey(asked.Key)
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "request for a certificate: %w", err)
	}
	// The key identifies the machine: if its reply is lost it asks again with the same key and uses up nothing.
	key := sha256.Sum256(der)
	use := &rowraftv1.JoinUse{Name: asked.Name, AtNs: uint64(time.Now().UnixNano()), Key: key[:]}
	_, err = c.propose(ctx,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_UseToken{UseToken: &rowraftv1.MetaUseToken{Id: t.GetId(),
			Use: use}}})
	if code := rowraft.CodeOf(err); code == rowraft.CodePrecondition || code == rowraft.CodeNotFound {
		c.logger.Warn("a machine with a token was refused", "remote", stranger, "name", asked.Name, "err", err)
		return nil, errToken()
	}
	if err != nil {
		return nil, err
	}
	who := certs.Identity{Cluster: c.opts.TLS.Identity().Cluster, Role: certs.Role(t.GetRole()), Name: asked.Name,
		Tables: t.GetTables()}
	// The use is logged before the certificate is signed, so there is no certificate that no use counts.
	cert, err := ca.Sign(certs.Request{Identity: who, Hosts: asked.Hosts, Valid: time.Duration(t.GetValidNs())}, asked.Key)
	if err != nil {
		return nil, err
	}
	c.logger.Info("a machine joined by a token", "token", t.GetId(), "identity", who.String(), "hosts", asked.Hosts,
		"remote", stranger)
	return &rowraftv1.JoinReply{Certificate: cert, Ca: c.opts.TLS.CA()}, nil
}

// stranger returns the address of a caller without a certificate, nil for other callers.
func (c *Certificates) stranger(ctx context.Context) net.Addr {
	caller := rpc.CallerOf(ctx)
	if p, ok := peer.FromContext(ctx); ok && caller != nil && caller.Role == rpc.Stranger {
		return p.Addr
	}
	return nil
}

// leader returns the address of the server that leads the scheduler; "" if it is unknown or this server.
func (c *Certificates) leaderAddr() string {
	l := c.log.Load()
	if l == nil {
		return ""
	}
	if node, _, self := (*l).Leader(); !self && node != "" {
		return c.addrOf(node)
	}
	return ""
}

func (c *Certificates) passOn(ctx context.Context, leader string,
	req *rowraftv1.JoinRequest) (*rowraftv1.JoinReply, error) {
	conn, err := c.conns.Get(leader)
	if err != nil {
		return nil, err
	}
	return rowraftv1.NewEntranceClient(conn).Join(ctx, req)
}

// RenewCertificate signs a new certificate with the identity of the caller's present one.
func (c *Certificates) RenewCertificate(ctx context.Context,
	_ *rowraftv1.RenewCertificateRequest) (*rowraftv1.RenewCertificateReply, error) {
	if _, err := c.leadingInSync(ctx); err != nil {
		return nil, err
	}
	ca, err := c.signer()
	if err != nil {
		return nil, err
	}
	old := rpc.Certificate(ctx)
	if old == nil {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"a call in plaintext shows no certificate that could be renewed")
	}
	cert, err := ca.Renew(old)
	if err != nil {
		return nil, err
	}
	c.logger.Info("a certificate was renewed", "identity", rpc.CallerOf(ctx).String(), "hosts", old.DNSNames)
	return &rowraftv1.RenewCertificateReply{Certificate: cert, Ca: c.opts.TLS.CA()}, nil
}
