// Package ramp limits how many batches of a job are under way at its begin.
package ramp
