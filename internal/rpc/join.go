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
	joinTry   = 10 * time.Second // timeout of one call
	joinPause = 500 * time.Millisecond
)

// Join gets a certificate with a token, from the first of addrs that has a leader, and stores it in files.
// The certificate gets name and hosts; an empty name leaves it to the token. Join tries until ctx ends or a
// server refuses finally.
//
// Errors: CodeDenied, also if a server does not belong to the token's cluster; in that case Join has not
// sent the secret to it.
func Join(ctx context.Context, addrs []string, token *certs.Token, files certs.Files, name string,
	hosts []string) error {
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
			if code := rowraft.CodeOf(err); code == rowraft.CodeDenied || code == rowraft.CodeInvalidArgument ||
				code == rowraft.CodePrecondition {
				return fmt.Errorf("join through %s: %w", addr, err)
			}
			silent = append(silent, fmt.Errorf("%s: %w", addr, err))
		}
		select {
		case <-time.After(joinPause):
		case <-ctx.Done():
			return rowraft.Errorf(rowraft.CodeDeadline, "no server let this machine join: %w", errors.Join(silent...))
		}
	}
}

func joinAt(ctx context.Context, addr string, token *certs.Token, ask *rowraftv1.JoinRequest) (*rowraftv1.JoinReply,
	error) {
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
	case err = <-refused: // refused by this side; gRPC would return only the text
	default:
	}
	if strings.Contains(err.Error(), "no application protocol") {
		err = rowraft.Errorf(rowraft.CodePrecondition,
			"this server does not accept machines without a certificate: start it with --with-scheduler and --ca-key, or "+
				"name a server that was started so (%w)", err)
	}
	return nil, err
}
