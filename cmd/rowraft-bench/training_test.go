package main

import "testing"

func TestHalvesOfAJob(t *testing.T) {
	r := trainingRun{examples: 100, seconds: 10, acks: []ackedSoFar{{2, 20}, {8, 60}, {10, 100}}}
	if first, second := r.halves(); first != 60./8 || second != 20 {
		t.Errorf("%.2f and %.2f examples/s, want 7.50 and 20.00", first, second)
	}
}
