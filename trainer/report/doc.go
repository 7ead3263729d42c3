// Package report is what a run reports: its events, counters, quality, waiting time and result.
//
//	loop, modes ──batches, pushes──► Report ──events──► Observer, EventFile
//	            ──predictions──────► Quality, Windows
//
// [Report] counts the fate of each batch and keeps the first error. It sends every event, one at a time. [Quality] and
// [Windows] measure predictions before the model learns from them. [Result] is what is left of a run at its end.
//
// The JSON forms of [Event] and [Result] are contracts: later versions may add fields, but rename none.
package report
