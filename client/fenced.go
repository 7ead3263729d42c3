package client

import (
	"context"
	"fmt"

	"github.com/rowraft/rowraft"
)

// Fenced dials the cluster anew as the client called id, and opens its session in
// every shard: when it returns, nothing that an earlier client of that name has sent
// can take effect any more, and what did is seen by PullLinearizable. Close it.
//
// The earlier one's pushes end with CodeSessionExpired.
func (c *Client) Fenced(ctx context.Context, id rowraft.ClientID) (*Client, error) {
	opts := c.opts
	opts.ClientID, opts.DType = id, rowraft.Float32 // weights as they are
	f, err := Dial(ctx, opts)
	if err != nil {
		return nil, err
	}
	for i := range f.Map().Shards {
		if _, err := f.openSession(ctx, f.Map().Shards[i].ID); err != nil {
			f.Close()
			return nil, fmt.Errorf("take over from an earlier client: %w", err)
		}
	}
	return f, nil
}
