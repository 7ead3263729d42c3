package optim

// settle does nothing on amd64: a NaN that its arithmetic makes, in SSE or AVX, already has the bits
// of docs/formats/rules.md, and further arithmetic keeps them.
func settle([]float32) {}
