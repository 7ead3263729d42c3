// Package digest has the sum by which replicas compare their rows.
package digest
