package models

// deepFM is the model of Guo et al., arXiv:1703.04247: a factorization machine and a network over the same embeddings
// and the dense features, whose outputs are added.
func deepFM(n *net) (head, error) {
	linear, embeddings := n.split()
	wide := n.plus(n.sum(linear), n.linear("linear"), n.fm(embeddings))
	return n.predict(n.plus(wide, n.deep("top", n.cfg.Top, n.dense, embeddings))), nil
}
