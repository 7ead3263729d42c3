package accel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// PluginVariable names the environment variable with the path of a PJRT plugin.
const PluginVariable = "ROWRAFT_PJRT_PLUGIN"

// builtForMinor is the minor version of the PJRT API whose structures the library passes to a plugin.
const builtForMinor = 104

// widenedBytes is how much larger than it is each structure of arguments is reported to a plugin of a newer PJRT API.
// A plugin refuses structures that are smaller than those it was built with ("Unexpected PJRT_..._Args size"), and
// takes zeros for the fields that the caller does not know.
const widenedBytes = 64

// loadedPlugin is what a plugin states about itself.
type loadedPlugin struct {
	version string // its version of the PJRT API
	widened bool   // it is newer than builtForMinor
}

// errNoPlugin: the environment names no plugin, and no JAX installation has one.
var errNoPlugin = errors.New("no CUDA plugin: $" + PluginVariable + " is not set, " +
	"and no jax_plugins/xla_cuda*/xla_cuda_plugin.so in the Python site-packages")

func errorsIsNoPlugin(err error) bool { return errors.Is(err, errNoPlugin) }

// nvidiaLibraries are loaded in this order, from site-packages/nvidia; the list
// and order are those of jax_plugins/cuda/__init__.py. The plugin then finds
// them by their SONAME, without LD_LIBRARY_PATH.
var nvidiaLibraries = []string{
	"cu13/lib/libcudart.so.13",
	"cu13/lib/libnvrtc.so.13",
	"cu13/lib/libnvJitLink.so.13",
	"cu13/lib/libcublasLt.so.13",
	"cu13/lib/libcublas.so.13",
	"nccl/lib/libnccl.so.2",
	"cu13/lib/libcupti.so.13",
	"cu13/lib/libcusparse.so.12",
	"cu13/lib/libcusolver.so.12",
	"cu13/lib/libcufft.so.12",
	"nvshmem/lib/libnvshmem_host.so.3",
	"cudnn/lib/libcudnn.so.9",
}

// sitePackages are the patterns under which Python keeps installed packages;
// $VIRTUAL_ENV and the home directory come first.
func sitePackages() []string {
	var patterns []string
	add := func(root string) {
		if root != "" {
			patterns = append(patterns,
				filepath.Join(root, "lib/python3*/site-packages"),
				filepath.Join(root, "lib/python3*/dist-packages"))
		}
	}
	add(os.Getenv("VIRTUAL_ENV"))
	add(os.Getenv("CONDA_PREFIX"))
	if home, err := os.UserHomeDir(); err == nil {
		add(filepath.Join(home, ".local"))
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if filepath.Base(dir) == "bin" { // a python on the PATH
			add(filepath.Dir(dir))
		}
	}
	add("/usr/local")
	add("/usr")
	patterns = append(patterns, "/usr/lib/python3/dist-packages")
	patterns = append(patterns, "/opt/*/lib/python3*/site-packages")
	return patterns
}

// plugin is a PJRT plugin and the NVIDIA libraries of its installation.
type plugin struct {
	path   string // real path, no symbolic link: its RUNPATH starts at $ORIGIN
	nvidia string // site-packages/nvidia, or "" if there is none
}

// findPlugin returns the plugin named by $ROWRAFT_PJRT_PLUGIN, else the one of
// the first Python installation that has one, else errNoPlugin.
func findPlugin() (*plugin, error) {
	if named := os.Getenv(PluginVariable); named != "" {
		path, err := realFile(named)
		if err != nil {
			return nil, fmt.Errorf("$%s: %w", PluginVariable, err)
		}
		return newPlugin(path), nil
	}
	for _, pattern := range sitePackages() {
		matches, _ := filepath.Glob(filepath.Join(pattern, "jax_plugins/xla_cuda*/xla_cuda_plugin.so"))
		slices.Sort(matches)
		slices.Reverse(matches) // the newest CUDA first
		for _, m := range matches {
			if path, err := realFile(m); err == nil {
				return newPlugin(path), nil
			}
		}
	}
	return nil, errNoPlugin
}

func realFile(name string) (string, error) {
	path, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return "", err
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a file", path)
	}
	return path, nil
}

// newPlugin looks for the NVIDIA libraries where the wheel puts them, two
// directories above the plugin (site-packages/jax_plugins/xla_cuda13/…so).
func newPlugin(path string) *plugin {
	p := &plugin{path: path}
	dir := filepath.Join(filepath.Dir(path), "../../nvidia")
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		p.nvidia = filepath.Clean(dir)
	}
	return p
}

// prepareEnvironment sets what the plugin reads when it is loaded. It leaves
// what the user has set.
func (p *plugin) prepareEnvironment(r *Report) {
	setDefault("GOPJRT_CUDA_CHECKS", "0") // the library's own checks expect another layout
	setDefault("GOMLX_NO_AUTO_INSTALL", "1")
	r.CUDADataDir = p.cudaDataDir()
	const flag = "--xla_gpu_cuda_data_dir="
	if flags := os.Getenv("XLA_FLAGS"); r.CUDADataDir != "" && !strings.Contains(flags, flag) {
		os.Setenv("XLA_FLAGS", strings.TrimSpace(flags+" "+flag+r.CUDADataDir))
	}
}

func setDefault(name, value string) {
	if _, set := os.LookupEnv(name); !set {
		os.Setenv(name, value)
	}
}

// cudaDataDir returns the first directory with nvvm/libdevice, which XLA needs to compile for the GPU, or "".
func (p *plugin) cudaDataDir() string {
	dirs := []string{"/usr/local/cuda"}
	if p.nvidia != "" {
		dirs = append([]string{filepath.Join(p.nvidia, "cu13"), filepath.Join(p.nvidia, "cuda_nvcc")}, dirs...)
	}
	for _, dir := range dirs {
		if info, err := os.Stat(filepath.Join(dir, "nvvm/libdevice")); err == nil && info.IsDir() {
			return dir
		}
	}
	return ""
}

// preload loads the NVIDIA libraries that exist. It only reports a failure: the plugin may work without the
// library, and reports itself what it lacks.
func (p *plugin) preload() []Library {
	if p.nvidia == "" {
		return nil
	}
	var libs []Library
	for _, name := range nvidiaLibraries {
		lib := Library{Path: filepath.Join(p.nvidia, name)}
		if _, err := os.Stat(lib.Path); err != nil {
			lib.Error = "not there"
		} else if err := loadGlobal(lib.Path); err != nil {
			lib.Error = oneLine(err)
		}
		libs = append(libs, lib)
	}
	return libs
}
