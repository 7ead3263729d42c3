package optim

// settle does nothing here: the NaN that amd64's arithmetic makes is the one of
// docs/formats/rules.md, in SSE as in AVX, and it stays as it is when computed with.
func settle([]float32) {}
