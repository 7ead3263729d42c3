// Package terminal talks to the person at the terminal: it shows progress and asks for confirmation.
package terminal
