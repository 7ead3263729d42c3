// Command mnist trains a LeNet on handwritten digits with all of its weights on a
// cluster of three servers on this machine, and fails unless it learns what such a
// network learns: `make mnist`.
//
//	servers (3 processes) ◄─ pull, push ─ rowraft-trainer (1 process) ◄─ idx files
//
// It prints the trainer's progress and a line for each figure with its bar, keeps
// nothing, and exits with 0 only if every bar is reached.
package main
