// Package quota limits the number of things that each owner may have.
package quota
