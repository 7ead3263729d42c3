package server

import (
	"crypto/x509"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/rpc"
	servingv1 "github.com/rowraft/rowraft/proto/rowraft/serving/v1"
)

// connKey is the context key of the connection of an HTTP request.
type connKey struct{}

// maxBytesInFlight bounds all requests in memory.
const maxBytesInFlight = 256 << 20

// budget is a number of bytes, of which each request takes a part.
type budget struct {
	limit int64
	used  atomic.Int64
}

// take takes n bytes. Errors: CodeOverloaded if they are not left.
func (b *budget) take(n int64) error {
	if b.used.Add(n) > b.limit {
		b.used.Add(-n)
		return &rowraft.OverloadedError{What: fmt.Sprintf("the requests in memory have %d bytes or more", b.limit),
			Limit: "bytes", RetryAfter: time.Second}
	}
	return nil
}

func (b *budget) give(n int64) { b.used.Add(-n) }

// mayScore returns an error unless the caller may read the tables of the model. Nil: the port is plaintext.
func (s *Server) mayScore(c *rpc.Caller) error {
	for _, table := range s.cfg.Tables {
		if err := c.CheckTable(table); err != nil {
			return err
		}
	}
	return nil
}

// callerOf returns the caller with a certificate. Errors: CodeDenied if its role may not score.
func callerOf(cert *x509.Certificate) (*rpc.Caller, error) {
	id, err := certs.Of(cert)
	if err != nil {
		return nil, err
	}
	if may := rpc.RolesOf(servingv1.Scoring_Score_FullMethodName); !slices.Contains(may, id.Role) {
		return nil, &rowraft.DeniedError{What: "scoring", Need: certs.Join(may), Have: id.String()}
	}
	return &rpc.Caller{Identity: id}, nil
}
