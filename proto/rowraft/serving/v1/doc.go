// Package servingv1 is the generated Go of the gRPC service Scoring, which `rowraft-trainer serve` serves to programs
// that are no part of a cluster.
package servingv1
