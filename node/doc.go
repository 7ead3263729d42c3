// Package node is one server process: it joins the cluster, serves the gRPC services and the ops port, and keeps the
// server in contact with the scheduler. Package replica serves the shards.
//
//	Run ─► identity, certificates ─► scheduler.Form ─► raftstore.Open ─► map ─► replica.Host.Follow
//
// Run owns every goroutine of the process and returns when all have ended. DESIGN.md describes the parts of a server,
// the paths of a write and a read, the locks, and the decisions with their reasons.
package node
