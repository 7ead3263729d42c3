// Package tables is the table service that training needs, and its two implementations:
//
//	Cluster   the tables of a rowraft cluster, through a client; the trainers of a job share them
//	Local     tables in this process, with the bits of a cluster: for trying a model, and as the reference
//
// [Tables] is what every mode of training needs. [Stepper] adds what trainers that wait for each other need, and
// [Initializer] what a trainer needs that writes initial weights.
package tables
