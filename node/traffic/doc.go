// Package traffic counts the calls of the table service by operation, result and table.
//
// Every set of labels is bounded: the operations and codes are fixed, and at most maxTables tables have counters of
// their own. Keys, clients and shards are never labels.
//
// A call costs one map lookup and a few atomic additions for each table that it names, and allocates nothing: the
// counters of a table are made when the first call names it.
package traffic
