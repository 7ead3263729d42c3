// Package rowraftv1 is the generated Go of the gRPC services (Table, Cluster, Replicas,
// Jobs, Checkpoints and others) and of the metadata that is logged. ARCHITECTURE.md lists
// the packages that may use generated types; all others use the types of package rowraft.
package rowraftv1
