package models

// fmModel is the factorization machine of Rendle (2010), equation 1: logistic regression plus the dot products of all
// pairs of embeddings. Dense features are in the linear part only.
func fmModel(n *net) (head, error) {
	linear, embeddings := n.split()
	return n.oneTask(n.plus(n.sum(linear), n.linear("linear"), n.fm(embeddings)))
}
