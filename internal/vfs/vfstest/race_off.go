//go:build !race

package vfstest

const stride = 1
