// Package redisload drives a Redis server with the unit of work that rowraft's own
// benchmark has: 8,192 keys a call, 64-byte values, uniform keys, several connections. It
// is the command `rowraft-bench redis`.
//
// Its RESP client is written for this: requests and replies are buffered, and a
// connection keeps --depth calls in flight, so Redis and not the load is what
// is measured. bench/peers/redis.sh starts the servers.
package redisload
