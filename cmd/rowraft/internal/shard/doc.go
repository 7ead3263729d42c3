// Package shard holds the commands `rowraft shard`.
package shard
