// Package failover measures how long pushes wait while servers are killed, moved, restarted, or have a disk that hangs.
package failover
