// Package scaffold has what the measurements of rowraft-bench share: the servers that they start, the machine that they
// run on, and the bars that they hold their figures against.
package scaffold
