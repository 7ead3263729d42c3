// Command rowraft-chaos breaks a cluster on this machine, of real server processes or of
// nodes in its own process and in virtual time, while clients count, and checks that nothing was lost, doubled or forked.
package main
