// Package check decides whether a history (package history) is one that a
// correct cluster can produce.
//
//	Vec        every push and pull of every row: exact, nearly linear in the ops
//	Count      how many acknowledged additions were lost or doubled in the end
//	Porcupine  the same question as Vec, asked of a general search, in windows
//	Leaders    at most one leader per shard and term
//	Digests    replicas at one applied index hold the same rows
//	Mono       applied indices in replies run forwards where that is promised
//
// # What is promised
//
// A row is a vector of counters; dimension c counts the pushes of client c that
// the row contains. All replicas of a shard pass through one sequence of states,
// in which every acknowledged push stands once, every refused one never, and a
// push acknowledged before another was called stands before it. Of an Unknown
// push any is allowed: it may come into effect at any time after its call, or
// never. A read returns one state of the row, and
//
//   - in mode "linearizable" one that the row had between the call and the return;
//   - in mode "leader" one that it had at some time before the return and that
//     contains all pushes of the same client acknowledged before the call
//     (ARCHITECTURE.md, one-way door 10). Nothing else: a deposed leader may
//     answer, so two reads of one client may run backwards, and pushes of other
//     clients may be missing however long ago they were acknowledged.
//   - in mode "bounded" one that it had at some time before the return and that
//     contains all pushes acknowledged before the call less the age that the reply
//     claims, which is at most the age that was allowed; and, if it asked for them
//     (Own), those of the same client acknowledged before the call.
//
// A client is one session for the whole history: one that loses its session goes
// on under another number. "Before" is strict: what returns in the nanosecond in
// which another is called counts as concurrent. A push to many rows, or a pull of
// them, is atomic for each row alone, so every row is checked by itself.
//
// A row that is deleted belongs to one client (package history), so a value other than 0
// names the ops that it contains; a read of nothing may contain as many as there were up
// to any delete. Before the rules are asked, such a read is given the fewest that the
// promise allows: each read has an own upper bound, and fewer bind later reads less, so if
// any choice obeys the rules this one does. Deletes are pushes from there on. One more
// rule looks at values that a delete would have left:
//
//	deleted        v is not that of an op that deleted the row
//
// # Rules
//
// Let v be what a read of a row returned; it contains the first v[c] pushes of
// client c, since a client is sequential.
//
//	chain      (a) the vectors of any two reads are comparable, in every dimension
//	                the same way around
//	monotonic  (b) a linearizable read is nowhere less than a read, of any mode,
//	                that returned before its call
//	acked      (c) v[c] ≥ pushes of c acknowledged before the call; of a leader read
//	                only for c = the reading client; of a bounded one before the call
//	                less its age
//	issued     (c) v[c] ≤ pushes of c called before the return, refused ones left out
//	order      (d) what contains a push contains all pushes acknowledged before
//	                that push was called
//	final          after the phase "final" (faults healed, one leader per shard,
//	                clients quiet) a read of any mode but bounded is the acknowledged set
//	bound          a bounded read claims no more than the age and lag that it was allowed
//	history        the history itself is malformed, so the proof does not hold
//
// The rules are necessary: each follows from the promise directly. They are also
// sufficient. By (a) the states read form a chain V₁ < V₂ < …; put each push right
// before the first Vₖ that contains it (after all reads if none does), pushes of
// one gap in any order that keeps real time, the reads of Vₖ right after the
// gap. Suppose x returned before y was called and y stands before x:
//
//   - two pushes: they are of different gaps, so a read contains y, not x: (d);
//   - push x, read y: y lacks an acknowledged push: (c), acked;
//   - read x, push y: x contains a push called after it returned: (c), issued;
//   - two reads: y is less than a read that returned before its call: (b).
//
// A leader read may stand before what returned before its call, except its own
// client's pushes, and a bounded one before what returned within its age, so only for those does it obey "acked", and
// it is never the y of (b). That a read which contains p is no less than any read finished before p was called needs no
// rule: were it less, that read too would contain p by (a), against (c).
//
// With an Unknown push of c among those counted, v[c] no longer names the pushes
// that a read contains. (c) then counts Unknown ones above and not below, and (d)
// takes the v[c]-th called of the definite and Unknown ones: whichever are
// contained, the last of them was called no earlier. Every rule stays necessary;
// sufficiency is lost, and Porcupine, which tries all choices, looks further.
// Clients resend until the answer is definite, so Unknown is rare.
//
// # Cost
//
// Of the n-th push of c only its place in two sorted lists is needed: called,
// acknowledged. So (c) and (d) are two lookups per read and dimension, (a) is a
// sort of the row's reads by sum, (b) a sweep with the largest value seen per
// dimension.
package check
