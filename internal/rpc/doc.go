// Package rpc is the border between rowraft and gRPC: the one place where a
// rowraft.Code becomes a status and back, where hot payloads cross without a
// copy, and where the limits of servers and clients are set (HAZARDS: grpc-go's
// defaults are open to abuse).
//
// # Payload memory
//
// The payloads of PullReply, PullRequest, PushRequest, AssignRequest and DeleteRequest are
// sent and received without going through protobuf's own copying. Received
// payloads lie in memory of Pool: whoever holds the message last gives it back
// with Pool.Release, or leaves it to the garbage collector. A PullReply's
// payload belongs to gRPC once the message is returned by a handler or sent.
// Request payloads stay the sender's. On the wire the messages are ordinary
// protobuf, so any gRPC client can talk to a rowraft server.
package rpc
