// Package cert holds the commands `rowraft cert` and `rowraft token`: a lab's CA, certificates, join tokens.
package cert
