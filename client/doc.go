// Package client pulls rows from a rowraft cluster and pushes gradients to it.
//
//	c, err := client.Dial(ctx, client.Options{Endpoints: []string{"127.0.0.1:7070"}})
//	user, err := c.Table(ctx, "user")
//	err = user.Pull(ctx, keys, weights)   // len(weights) = len(keys) × dim
//	ack, err := user.Push(ctx, keys, grads)
//
// A Client routes by the cluster map, sums the gradients of repeated keys,
// splits a call by shard, merges the answers, and retries by rowraft.Code until
// the context ends.
//
// # Exactly once
//
// A push is cut into batches, at least one per shard it touches. Each batch gets
// the next number of (this session, its shard) and is resent under that number
// until the shard gives a definite answer; the shard applies a number at most
// once. When the caller's context ends first, Push returns an error that says
// so and the client continues to resend the batch: the caller must not push the
// same gradients again. Flush waits for such batches and returns the error of one
// that failed; so does the next Push, without sending anything. docs/push.md has
// the states of a batch and what each error code leads to.
//
// The sessions of all shards of a push open before its first batch is sent. A call
// that ends before that has sent nothing: rowraft.CodeNotSent. Once one batch is
// sent, the others are sent too, with or without the caller.
//
// A push over several shards is several batches, each exactly-once; it is not
// atomic across shards. If some are applied and others refused, the error's code
// is one of those that say so (Code.MaybeApplied).
//
// # A cluster that is replaced
//
// The endpoints say which cluster a client belongs to. When more than half of them
// form a new one (docs/ops/runbooks.md, lose a majority), the client leaves for it.
// What was under way, jobs and Positions end with CodeSessionExpired, calls with an
// old table handle with CodePrecondition; new calls, with handles of Client.Table,
// work. Nothing that was sent to the old cluster takes effect in the new one.
//
// # What a pull sees
//
// Rows are atomic one by one: a pull beside a push may see some of its rows
// changed and others not yet, also within one shard.
package client
