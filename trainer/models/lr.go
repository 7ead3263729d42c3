package models

// lr is logistic regression, or linear regression with the loss MSE: a weight for each value of a feature, which is its
// row, one for each dense feature, and a bias.
func lr(n *net) (head, error) {
	return n.oneTask(n.plus(n.sum(n.fields), n.linear("linear")))
}
