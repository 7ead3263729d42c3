// Package mnist trains a LeNet on handwritten digits with all of its weights on a
// cluster of servers on this machine: the command `rowraft-bench mnist`.
//
//	servers (3 processes) ◄─ pull, push ─ rowraft-trainer (1 process) ◄─ idx files
package mnist
