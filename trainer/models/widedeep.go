package models

// wideDeep is Wide & Deep of Cheng et al., arXiv:1606.07792: logistic regression (wide) and a network over embeddings
// and dense features (deep), whose outputs are added.
func wideDeep(n *net) (head, error) {
	linear, embeddings := n.split()
	wide := n.plus(n.sum(linear), n.linear("wide"))
	return n.predict(n.plus(wide, n.deep("top", n.cfg.Top, n.dense, embeddings))), nil
}
