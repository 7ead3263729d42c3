// Command rowraft runs a server of a rowraft cluster, and operates clusters: status, tables, shards, benchmarks, the
// demo.
//
// Data go to stdout, messages to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the verdict is negative, 4
// unavailable or timed out, 5 refused by a safety check, 6 a server's data is damaged, 130 interrupted.
package main
