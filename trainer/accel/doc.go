// Package accel opens the compute backend a model runs on: the pure Go one, or
// XLA with the CUDA PJRT plugin that a JAX installation left on the machine.
//
//	Open("auto") ── find plugin ── preload NVIDIA libraries ── wrap its table ── xla:<plugin> ──► cuda
//	                    └────────────────────── any error, one line ────────────────────────► cpu
//
// # Invariants
//
//  1. The pure Go backend is opened as go:ops_sequential and nowhere else in
//     the project: its default mode deadlocks.
//  2. Nothing is ever downloaded: neither the library's default backends nor
//     its installer is imported, and a plugin is given by absolute path only.
//  3. The package builds without a C compiler and without CUDA; what it was
//     built with is in [Report.XLA].
//  4. A plugin that cannot be used fails Open(CUDA) and no other call: the
//     reason is in the report.
//  5. A plugin of a newer PJRT API than the library's gets structures of
//     arguments that are reported as larger (table.c), which it would refuse
//     otherwise.
package accel
