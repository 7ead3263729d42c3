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

// Devices for [Open].
const (
	Auto = "auto" // CUDA if it can be used, otherwise CPU
	CPU  = "cpu"
	CUDA = "cuda" // an error if it cannot be used
)

// Backend is an opened compute backend. A tensor belongs to the backend it was
// made with, so a process opens each device once; Open takes care of that.
type Backend struct {
	compute.Backend
	// Device is CPU or CUDA.
	Device string
}

// Library is one shared library that was loaded ahead of the plugin.
type Library struct {
	Path  string `json:"path"`
	Error string `json:"error,omitempty"` // "" if it was loaded
}

// Report states what Open looked for and what it found.
type Report struct {
	Asked  string `json:"asked"`
	Device string `json:"device"` // CPU or CUDA; "" if none was opened
	// XLA reports whether this binary was built with the XLA backend (cgo on linux/amd64).
	XLA           bool      `json:"xla_built_in"`
	Plugin        string    `json:"plugin,omitempty"`         // real path
	PluginVersion string    `json:"plugin_version,omitempty"` // PJRT API version of the plugin
	Widened       bool      `json:"widened,omitempty"`        // see widenedBytes
	Backend       string    `json:"backend,omitempty"`        // the library's name of the opened one: go or xla
	Devices       []string  `json:"devices,omitempty"`        // the opened backend's devices
	Libraries     []Library `json:"libraries,omitempty"`      // in the order they were loaded
	CUDADataDir   string    `json:"cuda_data_dir,omitempty"`
	// Reason is why CUDA cannot be used, in one line; "" if it is used or was not asked for.
	Reason string `json:"reason,omitempty"`
	// NoPlugin means that Reason is only the absence of a plugin, which is normal on a machine without a GPU.
	NoPlugin bool `json:"no_plugin,omitempty"`
}

// Line returns one line that states which device is used, and why.
func (r *Report) Line() string {
	switch {
	case r.Device == CUDA:
		return fmt.Sprintf("device: cuda, %s: %s, plugin %s, PJRT API %s", r.asked(), deviceList(r.Devices), r.Plugin,
			r.PluginVersion)
	case r.Asked == CPU:
		return "device: cpu, as asked"
	case r.NoPlugin:
		return "device: cpu, because this machine has no CUDA plugin"
	}
	return "device: cpu, because CUDA cannot be used: " + r.Reason
}

func (r *Report) asked() string {
	if r.Asked == Auto {
		return "found by auto"
	}
	return "as asked"
}

// deviceList names the first device, and the number of the others.
func deviceList(names []string) string {
	if len(names) > 1 {
		return fmt.Sprintf("%s (1 of %d)", names[0], len(names))
	}
	return strings.Join(names, "")
}

// opened holds the backends of this process, one for each device.
var opened struct {
	sync.Mutex
	cpu, cuda *Backend
	plugin    loadedPlugin // the plugin of the last attempt to open CUDA
}

// Open returns the backend of a device: Auto, CPU or CUDA. It always returns a
// report. Auto falls back to the CPU if the plugin is missing, cannot be loaded
// or fails to start; Report.Reason states why. Safe for concurrent use.
//
// Errors: CodeInvalidArgument for another device; CodePrecondition if CUDA was
// asked for and cannot be used; CodeInternal if the CPU's backend cannot be
// opened.
func Open(device string) (*Backend, *Report, error) {
	r := &Report{Asked: device, XLA: xlaBuilt}
	if device != Auto && device != CPU && device != CUDA {
		return nil, r, rowraft.Errorf(rowraft.CodeInvalidArgument, "device %q: want auto, cpu or cuda", device)
	}
	opened.Lock()
	defer opened.Unlock()
	if device != CPU {
		if b := openCUDALocked(r); b != nil {
			r.describe(b)
			return b, r, nil
		}
	}
	if device == CUDA {
		return nil, r, rowraft.Errorf(rowraft.CodePrecondition, "device cuda: %s%s", r.Reason, r.advice())
	}
	b, err := openCPULocked()
	if err != nil {
		return nil, r, err
	}
	r.describe(b)
	return b, r, nil
}

// advice returns what the user can do about r.Reason.
func (r *Report) advice() string {
	switch {
	case !r.XLA:
		return "; run a binary that was built with cgo on linux/amd64, or use device auto or cpu"
	case r.NoPlugin:
		return "; install JAX with CUDA in the Python of $PATH or $VIRTUAL_ENV (pip install \"jax[cuda13]\"), " +
			"set $" + PluginVariable + " to the path of xla_cuda_plugin.so, or use device auto or cpu"
	case strings.Contains(r.Reason, "Unexpected PJRT_"):
		return fmt.Sprintf("; the plugin's structures have grown by more than the %d bytes that this binary adds: set $%s "+
			"to an older plugin, use a newer rowraft-trainer, or use device auto or cpu", widenedBytes, PluginVariable)
	}
	return "; rowraft-trainer probe lists the libraries that were loaded; use device auto or cpu to train without CUDA"
}

func (r *Report) describe(b *Backend) {
	r.Device, r.Backend = b.Device, b.Name()
	for i := range b.NumDevices() {
		name, _, _ := strings.Cut(b.DeviceDescription(compute.DeviceNum(i)), " [processId=")
		r.Devices = append(r.Devices, name)
	}
}

func openCPULocked() (*Backend, error) {
	if opened.cpu != nil {
		return opened.cpu, nil
	}
	b, err := newWithConfig(goConfig)
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInternal, "open the pure Go backend: %w", err)
	}
	opened.cpu = &Backend{Backend: b, Device: CPU}
	return opened.cpu, nil
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
	if opened.cuda == nil {
		name := strings.ReplaceAll(p.path, ",", "_") // which the library would take for the end
		if opened.plugin, err = loadPlugin(p.path, name); err == nil {
			// TF32 off: products have the precision of the CPU's.
			opened.cuda, err = openXLA("xla:" + name + ",tf32=false")
		}
	}
	r.PluginVersion, r.Widened = opened.plugin.version, opened.plugin.widened
	if err != nil {
		r.Reason = oneLine(fmt.Errorf("plugin %s: %w", p.path, err))
		return nil
	}
	return opened.cuda
}

func openXLA(config string) (*Backend, error) {
	b, err := newWithConfig(config)
	if err != nil {
		return nil, err
	}
	return &Backend{Backend: b, Device: CUDA}, nil
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
