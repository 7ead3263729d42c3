// Package node holds the commands `rowraft node` and `rowraft operation`: servers, and the long work on them.
package node
