// Package server serves predictions over HTTP and gRPC: the server of rowraft-trainer serve.
//
// Both protocols parse a request with package request, as a file of the training data is parsed, and give it to a
// serving.Scorer. http.go and grpc.go have the protocols, metrics.go the metrics, and limits.go the callers that may
// score, and how much.
package server
