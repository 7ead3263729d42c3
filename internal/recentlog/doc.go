// Package recentlog keeps the last lines of a log in memory, for whoever is to find out
// what a process did before it was looked at.
package recentlog
