// Package hot is about the skew of the accesses: which keys of a shard are accessed most, and copies of rows of shards
// that have no replica on this server.
//
// A [Sketch] counts them by Space-Saving (Metwally, Agrawal and El Abbadi, 2005): it has a fixed number of counters,
// and a key without one takes the counter of the least frequent key, with its count as the possible error. So the
// count of a key is too high by at most its error, and a key without a counter has at most the lowest count. A request
// adds a few of its keys, chosen at random, each with the weight of those that it stands for: the cost does not grow
// with the request. Counts halve at intervals, so that the sketch forgets.
package hot
