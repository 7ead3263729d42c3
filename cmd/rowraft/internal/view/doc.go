// Package view converts the status of a cluster to the values that commands print.
//
// Each type is the contract of some command with -o json: its field names stay. Its method Print writes it for people.
package view
