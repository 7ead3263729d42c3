// Package vfstest crashes a script between any two of its disk steps, and checks
// what is found afterwards (after ALICE, Pillai et al., OSDI 2014).
//
// For each step n of the script, and once behind the last, the machine goes down
// before the step is done. Then
//
//   - the power was lost: for each of some seeds, what was not synced is there,
//     torn or gone, and the check runs on what is left;
//   - the process died: the check runs on everything, as the next process, and
//     what it saw and was answered counts as acknowledged; then the power is lost,
//     and the check runs again;
//   - the power was lost, and is lost again before each step of the check's own
//     recovery.
//
// Each sync of a file also fails once: the check runs as the next process, which
// finds what was written, and a second time after a power loss, which takes what no
// process has written again. A sync of the check fails in between, too.
//
// Each sync that the script or the check does by itself can be left out, to see
// that the check notices: one that is never missed is needless, or the check is
// blind.
package vfstest
