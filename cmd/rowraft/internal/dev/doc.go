// Package dev holds the command `rowraft dev`: a cluster of three servers with certificates on this machine.
//
// The servers are processes of their own, started as a user would start them: a server that is killed leaves the others
// alone, and what works here works on three machines.
package dev
