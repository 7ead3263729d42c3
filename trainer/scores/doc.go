// Package scores decides when a training job scores its held-out examples, which score is the best, and when the job
// stops early.
package scores
