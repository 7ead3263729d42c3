// Package certs is who somebody is: the identity in an X.509 certificate
// (docs/formats/certificate.md), the making of certificates for a lab, and the
// TLS 1.3 configurations of both sides, read again when the files change.
//
// # Invariants
//
//  1. Nobody without an identity of the same cluster gets past a handshake, on
//     either side: one CA may sign for several clusters.
//  2. A handshake uses what the files held last that was whole: a file that is
//     half written, expired or of another cluster is told and left aside.
//  3. No session is resumed: a certificate is looked at anew with every connection.
package certs
