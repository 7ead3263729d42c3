// Package hclogger passes the log messages of hashicorp's libraries to slog, at a bounded rate.
package hclogger
