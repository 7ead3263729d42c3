//go:build !(goexperiment.simd && amd64)

package optim

func sgd(w, g []float32, lr float32)               { sgdPlain(w, g, lr) }
func adagrad(w, acc, g []float32, lr, eps float32) { adagradPlain(w, acc, g, lr, eps) }
func adam(w, m, v, g []float32, s *adamStep)       { adamPlain(w, m, v, g, s) }
