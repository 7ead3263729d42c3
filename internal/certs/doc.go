// Package certs handles identities: the identity in an X.509 certificate
// (docs/formats/certificate.md), the creation of certificates for a test cluster, and the
// TLS 1.3 configurations of both sides, which follow changes of the files. BatchRecords makes
// large writes over TLS cheaper.
//
// # Invariants
//
//  1. A handshake succeeds only if both sides have an identity of the same cluster: one CA may
//     sign for several clusters.
//  2. A handshake uses the last complete content of the files. A file that is
//     half written, expired or of another cluster is logged and ignored.
//  3. Sessions are not resumed: each connection verifies the certificate again.
package certs
