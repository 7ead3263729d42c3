// Package tableconf is the configuration of a job's tables: optimizers, learning rates, and which keys have rows.
package tableconf
