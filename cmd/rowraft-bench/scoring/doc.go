// Package scoring is rowraft-bench serve: how long requests for predictions take, and how many rowraft-trainer serve
// answers.
package scoring
