//go:build !(cgo && linux && amd64 && !noxla)

package accel

import "errors"

const xlaBuilt = false

var errNoXLA = errors.New("built without the XLA backend")

func loadGlobal(string) error { return errNoXLA }

func loadPlugin(_, _ string) (loadedPlugin, error) { return loadedPlugin{}, errNoXLA }
