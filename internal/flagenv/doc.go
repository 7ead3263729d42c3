// Package flagenv is the environment of rowraft's commands: --log-level can be
// given as ROWRAFT_LOG_LEVEL, and what a command starts must not inherit it.
package flagenv
