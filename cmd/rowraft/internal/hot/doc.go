// Package hot holds the commands `rowraft hot`: which keys, shards and servers are accessed most.
package hot
