//go:build !(goexperiment.simd && amd64)

package optim

func sgd(w, g []float32, lr float32)               { sgdPlain(w, g, lr) }
func add(w, g []float32)                           { addPlain(w, g) }
func momentum(w, v, g []float32, lr, mu float32)   { momentumPlain(w, v, g, lr, mu) }
func adagrad(w, acc, g []float32, lr, eps float32) { adagradPlain(w, acc, g, lr, eps) }
func squares(sums *[lanes]float32, g []float32)    { squaresPlain(sums, g) }
func rowWise(w, g []float32, lr, d float32)        { rowWisePlain(w, g, lr, d) }
func adam(w, m, v, g []float32, s *adamStep)       { adamPlain(w, m, v, g, s) }
func ftrl(w, z, n, g []float32, s *ftrlStep)       { ftrlPlain(w, z, n, g, s) }
func addDecay(dst, w, g []float32, lambda float32) { addDecayPlain(dst, w, g, lambda) }
func clamp(w []float32, b float32)                 { clampPlain(w, b) }
func roundDrawn(w []float32, base, step uint32)    { roundDrawnPlain(w, base, step) }
