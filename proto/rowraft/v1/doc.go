// Package rowraftv1 is the generated Go of what crosses the network: the
// services Table, Admin and Cluster. Generated types stop at client, node,
// scheduler and internal/rpc; everything else uses the nouns of package rowraft.
package rowraftv1
