// Package dense stores the dense weights of a model in rows of tables, and initializes them.
package dense
