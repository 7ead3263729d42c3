// Package recentlog keeps the last lines of a log in memory, so that an operator can see what a process did
// before a problem was noticed.
package recentlog
