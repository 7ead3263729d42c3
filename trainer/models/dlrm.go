package models

// dlrm is the model of Naumov et al., arXiv:1906.00091: a bottom network over
// the dense features, dot products of all pairs of its output and the
// embeddings, and a top network over those products and the bottom's output.
// Hidden layers are ReLU; the last layer of the bottom network is linear, so
// that it can be a constant vector, by which each embedding also counts alone.
func dlrm(n *net) (head, error) {
	c := n.cfg
	bottom := &node{name: "bottom"} // of no width without dense features
	vectors := []*node{n.fields}
	if c.Dense > 0 {
		x := n.mlp("bottom", c.Bottom, n.dense)
		bottom = n.affine("bottom.out", c.Dim, false, x...)
		// Uniform in ±1: from the first step the bottom's output has a constant part, without which the information
		// of a single embedding averages out over the examples.
		bias := &n.params[len(n.params)-1]
		bias.FanIn, bias.FanOut = 3, 3
		bottom.name = "bottom"
		vectors = []*node{bottom, n.fields}
	} else if len(c.Widths) < 2 {
		return nil, invalid("one categorical feature and no dense one: nothing to multiply")
	}
	return n.predict(n.deep("top", c.Top, bottom, n.pairs("pairs", c.Dim, vectors...))), nil
}
