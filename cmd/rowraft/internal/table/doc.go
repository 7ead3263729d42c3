// Package table holds the commands `rowraft table` and `rowraft row`.
package table
