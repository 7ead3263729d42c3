package route

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
)

// pushTable renders the table of docs/push.md: the action of a code is that of layer Table,
// and where that ends the call, that of layer Batch.
func pushTable() string {
	byAction := make(map[Action][]string)
	for _, c := range codes() {
		a := OnCode(Table, c)
		if a == Return || a == Refresh {
			a = OnCode(Batch, c)
		}
		byAction[a] = append(byAction[a], c.String())
	}
	ends := map[Action]string{
		Resend: "ends after a limit | unknown",
		Renew:  "ends if another try may have been applied, or the session was taken over | unknown",
		Return: "ends | no",
	}
	var b strings.Builder
	b.WriteString("| action | codes | the batch | was it applied? |\n|---|---|---|---|\n")
	for _, a := range []Action{Follow, Next, Avoid, Wait, Refresh, Resend, Renew, Return} {
		result := "goes on | "
		if e := ends[a]; e != "" {
			result = e + " "
		}
		fmt.Fprintf(&b, "| %s | %s | %s|\n", a, strings.Join(byAction[a], ", "), result)
		delete(byAction, a)
	}
	for a, codes := range byAction {
		fmt.Fprintf(&b, "| %s | %s | has no row in docs/push.md |\n", a, strings.Join(codes, ", "))
	}
	return b.String()
}

// TestPushPage compares the table of docs/push.md with the code.
func TestPushPage(t *testing.T) {
	const file = "../../docs/push.md"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "<!-- actions -->\n")
	got, _, found := strings.Cut(rest, "<!-- end -->")
	if want := pushTable(); !found || got != want {
		t.Errorf("%s has the table\n%s\nthe code has\n%s", file, got, want)
	}
}

// What the page says of a batch that ends: with Return nothing was applied, with Resend and
// Renew the outcome is unknown.
func TestPushOutcomes(t *testing.T) {
	for _, c := range codes() {
		if OnCode(Table, c) != Return {
			continue
		}
		if a := OnCode(Batch, c); c.MaybeApplied() != (a == Resend || a == Renew) {
			t.Errorf("%s ends a batch by %s, but MaybeApplied is %v", c, a, c.MaybeApplied())
		}
	}
	if !rowraft.CodeUnknown.MaybeApplied() {
		t.Error("an earlier try that may have been applied makes the code Unknown, which must say so")
	}
}
