// Package quota bounds how many of something there are.
package quota
