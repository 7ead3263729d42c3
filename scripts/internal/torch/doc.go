// Package torch gives the data of a job to a script in Python, which trains with PyTorch on the same examples.
package torch
