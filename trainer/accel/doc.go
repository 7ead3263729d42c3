// Package accel opens the compute backend a model runs on: the pure Go one, or
// XLA with the CUDA PJRT plugin that a JAX installation left on the machine.
//
//	Open("auto") ── find plugin ── preload NVIDIA libraries ── xla:<plugin> ──► cuda
//	                    └───────────── any error, one line ────────────────► go
//
// # Invariants
//
//  1. The pure Go backend is opened as go:ops_sequential and nowhere else in
//     the project: its default mode deadlocks.
//  2. Nothing is ever downloaded: neither the library's default backends nor
//     its installer is imported, and a plugin is given by absolute path only.
//  3. The package builds without a C compiler and without CUDA; what it was
//     built with is in [Report.XLA].
//  4. A plugin that cannot be used never fails a caller of Open: the reason is
//     in the report, and the Go backend is opened.
package accel
