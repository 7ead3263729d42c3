// Package client pulls rows from a rowraft cluster and pushes gradients to it.
//
//	c, err := client.Dial(ctx, client.Options{Endpoints: []string{"127.0.0.1:7070"}})
//	user, err := c.Table(ctx, "user")
//	err = user.Pull(ctx, keys, weights)   // len(weights) = len(keys) × dim
//	ack, err := user.Push(ctx, keys, grads)
//
// A Client routes by the cluster map. It sums the gradients of repeated keys, splits a call by shard,
// merges the replies, and retries by rowraft.Code until the context ends.
//
// # Exactly once
//
// The client cuts a push into batches, at least one for each shard that the push touches. Each batch gets
// the next number of (this session, its shard). The client resends a batch under its number until the shard
// gives a definite answer. The shard applies a number at most once. If the caller's context ends first,
// Push returns an error that says so, and the client continues to resend the batch: the caller must not
// push the same gradients again. Flush waits for such batches and returns the error of one that failed. The
// next Push returns such an error too, and sends nothing. docs/push.md has the states of a batch and what
// each error code leads to.
//
// The client opens the sessions of all shards of a push before it sends the first batch. A call that ends
// before that has sent nothing: rowraft.CodeNotSent. Once the client has sent one batch, it sends the
// others too, even if the caller's context ends.
//
// A push to several shards is several batches. Each batch is exactly-once; the push is not atomic across
// shards. If some batches are applied and others are refused, the error has a code for which
// Code.MaybeApplied is true.
//
// # A cluster that is replaced
//
// The endpoints decide which cluster a client belongs to. When more than half of them form a new cluster
// (docs/ops/runbooks.md, lose a majority), the client moves to it. Calls in progress, jobs and Positions of
// the old cluster end with CodeSessionExpired. Calls with an old table handle end with CodePrecondition.
// New calls work with handles that Client.Table returns after the move. Nothing that the client sent to the
// old cluster takes effect in the new one.
//
// # What a pull sees
//
// Each row is atomic by itself. A pull concurrent with a push may see some of the push's rows changed and
// others not yet, also within one shard.
package client
