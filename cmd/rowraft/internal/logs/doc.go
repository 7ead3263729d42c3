// Package logs holds the commands `rowraft log`, which read the Raft logs in the data directories of stopped servers.
package logs
