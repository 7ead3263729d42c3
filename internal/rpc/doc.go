// Package rpc is the border between rowraft and gRPC. It converts a
// rowraft.Code to a status and back, sends and receives hot payloads without a
// copy, sets the limits of servers and clients (grpc-go's
// defaults allow abuse), and decides which roles may make which call.
//
// # Callers
//
// A connection with certificates has a Caller, the identity of the peer. roles.go
// lists the roles of each call, and interceptors check them. Checks that depend on the request,
// such as tables and client ids, are made by handlers with the Caller in their context. A plaintext
// connection, which must be on loopback, and a call within the process have no Caller: everything is
// allowed.
//
// # Payload memory
//
// The payloads of PullReply, PullRequest and WriteRequest, alone or in a list, bypass protobuf's own copying. Received
// payloads are in memory of Pool: the last holder of the message frees the payload
// with Pool.Release, or leaves it to the garbage collector. A PullReply's
// payload belongs to gRPC once a handler returns or sends the message.
// Request payloads stay the sender's. On the wire the messages are ordinary
// protobuf, so any gRPC client can call a rowraft server.
package rpc
