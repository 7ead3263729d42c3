// Package node holds the commands `rowraft server list`, status, drain and the like, and `rowraft operation`: servers,
// and the long work on them.
package node
