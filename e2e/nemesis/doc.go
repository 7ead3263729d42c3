// Package nemesis does bad things to a cluster, from a seed: kills, stops, cuts,
// delays, resets, clients that misbehave; one at a time and two at once.
//
// Every act goes into the history. It counts only if its effect was observed: the
// process gone, bytes held back, another leader. An act undoes itself before it
// ends. The seed decides kinds, targets and lengths; what the cluster makes of them
// is up to the machine, so a seed repeats the schedule and not the outcome.
package nemesis
