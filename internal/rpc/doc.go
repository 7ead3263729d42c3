// Package rpc is the border between rowraft and gRPC: the one place where a
// rowraft.Code becomes a status and back, where hot payloads cross without a
// copy, where the limits of servers and clients are set (grpc-go's
// defaults are open to abuse), and where it is decided who may make which call.
//
// # Callers
//
// A connection with certificates has a Caller, the identity of the other side. roles.go
// lists the roles of each call, which interceptors check; what depends on the request,
// tables and client ids, handlers ask the Caller of their context. In plaintext, which
// is of loopback, and within a process there is no Caller, and everything is allowed.
//
// # Payload memory
//
// The payloads of PullReply, PullRequest and WriteRequest are sent and received without going through protobuf's own copying. Received
// payloads lie in memory of Pool: whoever holds the message last gives it back
// with Pool.Release, or leaves it to the garbage collector. A PullReply's
// payload belongs to gRPC once the message is returned by a handler or sent.
// Request payloads stay the sender's. On the wire the messages are ordinary
// protobuf, so any gRPC client can talk to a rowraft server.
package rpc
