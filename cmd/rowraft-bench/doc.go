// Command rowraft-bench measures rowraft: clusters of its own on this machine or one that
// runs, the row store by itself, a real model, and Redis under the same load.
//
//	pull, push          rows per second of a cluster     ┐
//	restart, failover   how long pushes wait             │ servers as processes on loopback,
//	checkpoint          what checkpoints cost            │ localcluster
//	overload            ten times what is let in         │
//	stragglers, mnist   training                         │
//	quality, scaling    training with several trainers   ┘
//	rowstore            the row store, in this process     package rowstore
//	redis               a Redis server under the same load package redisload
//
// bench/README.md describes the purpose of each, and how results are kept.
package main
