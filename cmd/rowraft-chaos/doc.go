// Command rowraft-chaos breaks a cluster of real server processes on this machine
// while clients count, and checks that nothing was lost, doubled or forked.
package main
