package client

import (
	"context"
	"fmt"

	"github.com/rowraft/rowraft"
)

// Fenced dials the cluster as the client id and opens its session in every shard. When it returns, nothing
// that an earlier client of that id has sent can take effect any more, and PullLinearizable sees what did.
// The caller must close the returned client.
//
// Pushes of the earlier client end with CodeSessionExpired.
func (c *Client) Fenced(ctx context.Context, id rowraft.ClientID) (*Client, error) {
	opts := c.opts
	opts.ClientID, opts.DType = id, rowraft.Float32 // read weights without rounding
	f, err := Dial(ctx, opts)
	if err != nil {
		return nil, err
	}
	for i := range f.Map().Shards {
		if _, err := f.sessions.open(ctx, f.Map().Shards[i].ID); err != nil {
			f.Close()
			return nil, fmt.Errorf("take over from an earlier client: %w", err)
		}
	}
	return f, nil
}
