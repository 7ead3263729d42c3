package accel

import (
	"fmt"
	"strings"
	"sync"

	"github.com/gomlx/compute"
	_ "github.com/gomlx/compute/gobackend" // registers "go"

	"github.com/rowraft/rowraft"
)

// goConfig is the only way the project opens the pure Go backend.
const goConfig = "go:ops_sequential"

// Choices for [Open].
const (
	Auto = "auto" // cuda if it works, else go
	Go   = "go"   // pure Go, on the CPU
	CUDA = "cuda" // like auto, but a fall back to the CPU is worth a warning
)

// Backend is an opened compute backend. A tensor belongs to the backend it was
// made with, so a process opens each kind once; Open takes care of that.
type Backend struct {
	compute.Backend
	// Kind is Go or CUDA.
	Kind string
}

// Library is one shared library that was loaded ahead of the plugin.
type Library struct {
	Path  string `json:"path"`
	Error string `json:"error,omitempty"` // "" if it was loaded
}

// Report says what Open looked for and what it found.
type Report struct {
	Asked   string `json:"asked"`
	Backend string `json:"backend"` // go or cuda: what was opened
	// XLA reports whether this binary was built with the XLA backend (cgo on linux/amd64).
	XLA           bool      `json:"xla_built_in"`
	Plugin        string    `json:"plugin,omitempty"`         // real path
	PluginVersion string    `json:"plugin_version,omitempty"` // PJRT API version of the plugin
	Platform      string    `json:"platform,omitempty"`       // as the opened backend describes itself
	Devices       int       `json:"devices"`                  // of the opened backend
	Libraries     []Library `json:"libraries,omitempty"`      // in the order they were loaded
	CUDADataDir   string    `json:"cuda_data_dir,omitempty"`
	// Reason is why the CPU is used although the caller asked for auto or cuda: one line, or "".
	Reason string `json:"reason,omitempty"`
	// NoPlugin means that Reason is only the absence of a plugin, which is normal on a machine without a GPU.
	NoPlugin bool `json:"no_plugin,omitempty"`
}

// Warning returns one line for the user, or "" if the choice could be met.
func (r *Report) Warning() string {
	if r.Reason == "" || (r.NoPlugin && r.Asked == Auto) {
		return ""
	}
	return "accelerator: " + r.Reason + "; using the CPU"
}

// opened holds the backends of this process, one for each kind.
var opened struct {
	sync.Mutex
	goBackend, cudaBackend *Backend
}

// Open returns the backend for choice: Auto, Go or CUDA. It always returns a
// report. A plugin that is missing, cannot be loaded or fails to start makes it
// fall back to the Go backend, with Report.Reason set. Safe for concurrent use.
//
// Errors: CodeInvalidArgument for another choice; CodeInternal if even the Go
// backend cannot be opened.
func Open(choice string) (*Backend, *Report, error) {
	r := &Report{Asked: choice, XLA: xlaBuilt}
	if choice != Auto && choice != Go && choice != CUDA {
		return nil, r, rowraft.Errorf(rowraft.CodeInvalidArgument, "accelerator %q: want auto, go or cuda", choice)
	}
	opened.Lock()
	defer opened.Unlock()
	if choice != Go {
		if b := openCUDALocked(r); b != nil {
			r.describe(b)
			return b, r, nil
		}
	}
	b, err := openGoLocked()
	if err != nil {
		return nil, r, err
	}
	r.describe(b)
	return b, r, nil
}

func (r *Report) describe(b *Backend) {
	r.Backend, r.Platform, r.Devices = b.Kind, b.Description(), int(b.NumDevices())
}

func openGoLocked() (*Backend, error) {
	if opened.goBackend != nil {
		return opened.goBackend, nil
	}
	b, err := newWithConfig(goConfig)
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInternal, "open the pure Go backend: %w", err)
	}
	opened.goBackend = &Backend{Backend: b, Kind: Go}
	return opened.goBackend, nil
}

// openCUDALocked returns nil and sets r.Reason if CUDA cannot be used.
func openCUDALocked(r *Report) *Backend {
	if !xlaBuilt {
		r.Reason, r.NoPlugin = "this binary was built without the XLA backend (it needs cgo on linux/amd64)", true
		return nil
	}
	p, err := findPlugin()
	if err != nil {
		r.Reason, r.NoPlugin = oneLine(err), errorsIsNoPlugin(err)
		return nil
	}
	r.Plugin = p.path
	p.prepareEnvironment(r)
	r.Libraries = p.preload()
	if r.PluginVersion, err = pluginVersion(p.path); err != nil {
		r.Reason = oneLine(fmt.Errorf("plugin %s: %w", p.path, err))
		return nil
	}
	if opened.cudaBackend != nil {
		return opened.cudaBackend
	}
	b, err := newWithConfig("xla:" + p.path + ",preallocate=false")
	if err != nil {
		r.Reason = oneLine(fmt.Errorf("plugin %s: %w", p.path, err))
		return nil
	}
	opened.cudaBackend = &Backend{Backend: b, Kind: CUDA}
	return opened.cudaBackend
}

// newWithConfig turns the library's panics into errors.
func newWithConfig(config string) (b compute.Backend, err error) {
	defer func() {
		if p := recover(); p != nil {
			b, err = nil, fmt.Errorf("%v", p)
		}
	}()
	return compute.NewWithConfig(config)
}

// oneLine joins the lines of an error's text: the libraries below print stacks
// and advice over many.
func oneLine(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}
