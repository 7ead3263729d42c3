package client

import (
	"testing"

	"github.com/rowraft/rowraft"
)

// TestAClientEntersUntilItPushes: a worker enters its job again as long as it waits for the
// others, and not any more when a shard knows its session.
func TestAClientEntersUntilItPushes(t *testing.T) {
	c := &Client{}
	c.session.init()
	for inc := range rowraft.Incarnation(3) {
		id := rowraft.ClientID{byte(inc)}
		if err := c.adopt(t.Context(), id, inc+1); err != nil || c.session.inc != inc+1 || c.opts.ClientID != id {
			t.Fatalf("entry %d: %v; incarnation %d of %x", inc+1, err, c.session.inc, c.opts.ClientID)
		}
	}
	c.session.shards[7].Store(&shardSession{})
	if err := c.adopt(t.Context(), rowraft.ClientID{9}, 9); err == nil || c.session.inc != 3 {
		t.Errorf("after a push: %v, incarnation %d", err, c.session.inc)
	}
}
