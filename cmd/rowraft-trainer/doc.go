// Command rowraft-trainer trains a model whose weights live on a rowraft cluster.
//
//	rowraft-trainer train --config FILE    train, then score the held-out examples
//	rowraft-trainer start --config FILE    train, configured by the environment variables of other frameworks
//	rowraft-trainer sweep FILE --set ...   train with each combination of values, and rank the runs
//	rowraft-trainer runs                   list, compare, draw and remove recorded runs
//	rowraft-trainer evaluate --config FILE score only
//	rowraft-trainer gen --out FILE         write a generated click log
//	rowraft-trainer probe                  report the backend that would run the model
//
// Exit codes: 0 done, 1 failed, 2 usage or bad input, 4 the cluster could not be reached in time, 130 interrupted.
package main
