package wire

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
)

// The list has no gap, and docs/formats/versions.md has the same one.
func TestVersionsAreThoseOfThePage(t *testing.T) {
	page, err := os.ReadFile("../docs/formats/versions.md")
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range Versions() {
		if v.Number != FirstVersion+rowraft.FormatVersion(i) {
			t.Errorf("version %d (%s) has place %d of the list", v.Number, v.Name, i)
		}
		if row := fmt.Sprintf("| %d | %s | %s |\n", v.Number, v.Name, v.Change); !strings.Contains(string(page), row) {
			t.Errorf("the page has no row %q", row)
		}
	}
}

// An entry of the next version is too new, and is read once the binary understands it.
func TestTheNextVersionIsTooNew(t *testing.T) {
	entry := SweepEntry(EntryHeader{Version: NewestVersion() + 1, Epoch: 1},
		&Sweep{Table: 1, Slots: 1, Conditions: SweepExpire})
	_, _, err := ParseEntryHeader(entry)
	testutil.WantCode(t, err, rowraft.CodeVersionTooNew, "upgrade it")
	next, forget := InventVersion()
	if h, _, err := ParseEntryHeader(entry); err != nil || h.Version != next || next != FirstVersion+1 ||
		len(Versions()) != 2 {
		t.Errorf("with version %d in the list: header %+v, %v", next, h, err)
	}
	forget()
	_, _, err = ParseEntryHeader(entry)
	testutil.WantCode(t, err, rowraft.CodeVersionTooNew, "upgrade it")
}
