// Package history records what clients asked and were told, and what was done to
// the cluster meanwhile, on one monotonic clock.
//
// Rows are vector clocks: client c pushes gradient −1 in dimension c only, with
// SGD and learning rate 1, so a row's value in dimension c is the number of c's
// pushes that it contains. Loss, duplication, reordering and staleness are then
// arithmetic (package check).
//
// Rows that are deleted, too, belong to one client: its n-th op on such a row, a push
// or a delete, leaves n in its dimension or nothing at all. A push then adds what lacks
// since the last delete. So a value names the ops that it contains as it does in
// other rows, but for nothing, which any delete may have left.
//
// A history is append-only JSON lines, one Op each, in the order of Return. It
// may be checked again later by newer checkers: `rowraft-chaos check DIR`.
package history
