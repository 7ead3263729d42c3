package cli

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAShellWithoutTheVariablesOfDev is told about them, where `rowraft dev` was started.
func TestAShellWithoutTheVariablesOfDev(t *testing.T) {
	t.Chdir(t.TempDir())
	err := errors.New("no certificates")
	if got := hintOf(DevHint(err)); got != "" {
		t.Errorf("hint %q without rowraft-dev", got)
	}
	if err := os.MkdirAll(filepath.Dir(devEnv), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(devEnv, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := hintOf(DevHint(err)); !strings.Contains(got, ". rowraft-dev/env") {
		t.Errorf("hint %q", got)
	}
}

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
