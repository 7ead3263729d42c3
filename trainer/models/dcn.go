package models

import "fmt"

// dcn is DCN-v2 of Wang et al., arXiv:2008.13535, in parallel: cross layers and a network over the dense features and
// the embeddings, and a last layer over both. An example is x0; cross layer i is x0 ⊙ (W·x + b) + x (equation 1).
func dcn(n *net) (head, error) {
	c := n.cfg
	x0 := n.concat("x", n.dense, n.fields)
	x := x0
	for i := range c.Cross {
		x = n.cross(fmt.Sprintf("cross.%d", i), x0, x)
	}
	x.name = "cross"
	last := []*node{x}
	if len(c.Top) > 0 {
		deep := n.mlp("top", c.Top, x0)[0]
		deep.name = "deep"
		last = append(last, deep)
	}
	return n.predict(n.affine("out", c.tasks(), false, last...)), nil
}
