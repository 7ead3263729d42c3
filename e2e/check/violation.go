package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Rule names what a Violation violates. See the package comment for the rules of
// rows.
type Rule string

const (
	RuleHistory   Rule = "history"
	RuleChain     Rule = "chain"
	RuleMonotonic Rule = "monotonic"
	RuleAcked     Rule = "acked"
	RuleIssued    Rule = "issued"
	RuleOrder     Rule = "order"
	RuleFinal     Rule = "final"
	RuleBound     Rule = "bound"
	RuleDeleted   Rule = "deleted"

	RulePorcupine Rule = "porcupine" // no order of the window's ops explains what was read
	RuleLeader    Rule = "leader"    // two replicas led one shard in one term
	RuleDigest    Rule = "digest"    // two replicas differ at one applied index
	RuleIndex     Rule = "index"     // a reply's applied index is behind what was promised
)

// Violation is one thing that a correct cluster does not do.
type Violation struct {
	Rule Rule   `json:"rule"`
	Row  int    `json:"row"`  // −1: not about one row
	Ops  []int  `json:"ops"`  // positions in what was checked, the later read last
	Text string `json:"text"` // a sentence for a person
	More int    `json:"more"` // further violations of Rule in Row, not listed
}

func (v Violation) String() string {
	s := string(v.Rule) + ": " + v.Text
	if v.More > 0 {
		s += fmt.Sprintf(" (and %d more in this row)", v.More)
	}
	return s
}

// findings collects violations, the first of each rule and row in full.
type findings struct {
	list []Violation
	at   map[findingKey]int
}

type findingKey struct {
	rule Rule
	row  int
}

// add files a violation; text is called only for one that is listed.
func (f *findings) add(rule Rule, row int, text func() string, ops ...int) {
	key := findingKey{rule, row}
	if i, ok := f.at[key]; ok {
		f.list[i].More++
		return
	}
	if f.at == nil {
		f.at = make(map[findingKey]int)
	}
	f.at[key] = len(f.list)
	f.list = append(f.list, Violation{Rule: rule, Row: row, Ops: ops, Text: text()})
}

// sorted returns the violations by row, then rule.
func (f *findings) sorted() []Violation {
	slices.SortStableFunc(f.list, func(a, b Violation) int {
		return cmp.Or(cmp.Compare(a.Row, b.Row), cmp.Compare(a.Rule, b.Rule))
	})
	return f.list
}

// at prints a time of the history's clock.
func at(ns int64) string { return time.Duration(ns).String() }
