package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

const (
	joinTry   = 10 * time.Second // one call
	joinPause = 500 * time.Millisecond
)

// Join gets a certificate for files by a token, from the first of addrs that has a leader,
// and keeps it. Name and hosts are what the certificate is to say; name "" leaves it to the
// token. It tries until ctx ends, or until somebody who may decide says no.
//
// Errors: CodeDenied, also if a server is not of the token's cluster; then it was told nothing.
func Join(ctx context.Context, addrs []string, token *certs.Token, files certs.Files, name string, hosts []string) error {
	request, err := files.NewRequest(name, hosts)
	if err != nil {
		return err
	}
	ask := &rowraftv1.JoinRequest{Token: token.ID, Secret: token.Secret[:], Request: request}
	for {
		var silent []error
		for _, addr := range addrs {
			reply, err := joinAt(ctx, addr, token, ask)
			if err == nil {
				return files.Keep(reply.GetCertificate(), reply.GetCa())
			}
			if code := rowraft.CodeOf(err); code == rowraft.CodeDenied || code == rowraft.CodeInvalidArgument || code == rowraft.CodePrecondition {
				return fmt.Errorf("join through %s: %w", addr, err)
			}
			silent = append(silent, fmt.Errorf("%s: %w", addr, err))
		}
		select {
		case <-time.After(joinPause):
		case <-ctx.Done():
			return rowraft.Errorf(rowraft.CodeDeadline, "nobody let this machine join: %w", errors.Join(silent...))
		}
	}
}

func joinAt(ctx context.Context, addr string, token *certs.Token, ask *rowraftv1.JoinRequest) (*rowraftv1.JoinReply, error) {
	refused := make(chan error, 1)
	conn, err := DialEntrance(addr, token, nil, refused)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, joinTry)
	defer cancel()
	reply, err := rowraftv1.NewEntranceClient(conn).Join(ctx, ask)
	if err == nil {
		return reply, nil
	}
	select {
	case err = <-refused: // by us, which gRPC tells as text only
	default:
	}
	if strings.Contains(err.Error(), "no application protocol") {
		err = rowraft.Errorf(rowraft.CodePrecondition, "no machine without a certificate gets in here: start this server with --with-scheduler and --ca-key, or name one that is (%w)", err)
	}
	return nil, err
}
