//go:build cgo && linux && amd64 && !noxla

package accel

// #include "table.h"
import "C"

import (
	"errors"
	"fmt"
	"io"
	"unsafe"

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

// loadPlugin loads the plugin, checks its table of functions, and registers it
// with the XLA backend under a name, which is an absolute path. A process can use one plugin: a second
// call replaces the plugin of the first one, which must have no client.
func loadPlugin(path, name string) (p loadedPlugin, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	handle, err := purego.Dlopen(path, purego.RTLD_LAZY|purego.RTLD_LOCAL)
	if err != nil {
		return p, err
	}
	get, err := purego.Dlsym(handle, "GetPjrtApi")
	if err != nil {
		return p, fmt.Errorf("it is no PJRT plugin: %w", err)
	}
	api := C.get_api(C.uintptr_t(get))
	if api == nil {
		return p, errors.New("its GetPjrtApi returns no table of functions")
	}
	if size := C.table_size(api); size < C.MIN_TABLE {
		return p, fmt.Errorf("its table of functions has %d bytes: want %d or more", size, int(C.MIN_TABLE))
	}
	major, minor := int(C.table_major(api)), int(C.table_minor(api))
	p = loadedPlugin{version: fmt.Sprintf("%d.%d", major, minor), widened: minor > builtForMinor}
	if major != 0 {
		return p, fmt.Errorf("its PJRT API is %s: this binary knows 0.x", p.version)
	}
	room := 0
	if p.widened {
		room = widenedBytes
	}
	return p, pjrt.RegisterPreloadedPlugin(name, uintptr(unsafe.Pointer(C.wrap_table(api, C.size_t(room)))))
}
