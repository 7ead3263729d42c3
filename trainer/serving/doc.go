// Package serving computes the predictions of concurrent requests.
//
//	Score ─► queue ─► worker: join ─► pull rows ─► model ─► Score returns
//	         bounded       │ examples of several requests
//	                       └ dense weights, which a goroutine renews in the background
//
// # Invariants
//
//  1. Nothing is written: not even a row of a key that has none.
//  2. No weight is older than Options.MaxAge when a batch begins to use it. Without newer ones a request fails with
//     CodeTooStale or CodeDeadline.
//  3. A prediction does not depend on the requests that share its batch.
//  4. A request that waits for nothing else is computed at once: a worker takes all that is queued, and never waits for
//     more.
//
// # Concurrency
//
// New starts the workers and the goroutine that renews the dense weights; Close ends them after they have answered what
// is queued. Workers pull concurrently. As many as there are processors compute at the same time.
package serving
