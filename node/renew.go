package node

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft/internal/certs"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// renewLook is how often a server checks its certificate; the others are the pauses after a failed renewal.
const (
	renewLook     = time.Minute
	renewRetry    = 200 * time.Millisecond // at first
	renewMaxRetry = 30 * time.Second
)

// renewCert renews this server's certificate: with a third of its time left, it requests the same
// certificate with a later end from the scheduler. It ends with ctx.
func (c *control) renewCert(ctx context.Context) {
	for failed, retry := 0, renewRetry; ; {
		wait := renewLook
		if leaf := c.tls.Leaf(); certs.DueForRenewal(leaf, time.Now()) {
			if err := c.renewOnce(ctx); err != nil {
				if failed++; failed%20 == 5 && // not while the cluster starts
					ctx.Err() == nil {
					c.n.log.Error("the certificate of this server cannot be renewed", "cert", c.n.cfg.TLS.Cert, "expires",
						leaf.NotAfter, "err", err)
				}
				wait, retry = retry, min(2*retry, renewMaxRetry)
			} else {
				failed, retry = 0, renewRetry
			}
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

func (c *control) renewOnce(ctx context.Context) error {
	var reply *rowraftv1.RenewCertificateReply
	err := c.ask(ctx, 5*time.Second, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		reply, err = rowraftv1.NewCertificatesClient(conn).RenewCertificate(ctx, &rowraftv1.RenewCertificateRequest{})
		return err
	})
	if err != nil {
		return err
	}
	return c.n.cfg.TLS.Keep(reply.GetCertificate(), reply.GetCa())
}
