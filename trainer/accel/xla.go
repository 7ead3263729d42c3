//go:build cgo && linux && amd64 && !noxla

package accel

import (
	"fmt"
	"io"

	"github.com/ebitengine/purego"
	_ "github.com/gomlx/go-xla/compute/xla" // registers "xla"
	"github.com/gomlx/go-xla/pjrt"
	"k8s.io/klog/v2"
)

const xlaBuilt = true

// The loader logs each attempt over several lines; the error it returns holds
// all of it, and Report has that as one line.
func init() {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
}

// loadGlobal loads a shared library for the rest of the process.
func loadGlobal(path string) error {
	_, err := purego.Dlopen(path, purego.RTLD_LAZY|purego.RTLD_GLOBAL)
	return err
}

// pluginVersion loads the plugin and returns the version of its PJRT API.
func pluginVersion(path string) (version string, err error) {
	defer func() {
		if p := recover(); p != nil {
			version, err = "", fmt.Errorf("%v", p)
		}
	}()
	p, err := pjrt.GetPlugin(path)
	if err != nil {
		return "", err
	}
	major, minor := p.Version()
	return fmt.Sprintf("%d.%d", major, minor), nil
}
