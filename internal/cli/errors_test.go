package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// TestErrorsAreCleaned: the text of an error may come from another machine.
func TestErrorsAreCleaned(t *testing.T) {
	evil := errors.New("worker \x1b[2J\u202e left")
	var text, asJSON bytes.Buffer
	PrintError(&text, "rowraft", evil, false)
	PrintError(&asJSON, "rowraft", evil, true)
	if text.String() != `rowraft: worker \x1b[2J\u202e left`+"\n" || strings.ContainsRune(asJSON.String(), '\x1b') {
		t.Errorf("a person reads %q, a program %q", text.String(), asJSON.String())
	}
}
