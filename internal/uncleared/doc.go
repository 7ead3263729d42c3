// Package uncleared allocates memory without clearing it.
package uncleared
