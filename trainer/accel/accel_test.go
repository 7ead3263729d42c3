package accel

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
)

// buildLibrary compiles a shared library from C, or skips the test.
func buildLibrary(t *testing.T, dir, name, source string) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler: cannot build a fake plugin")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	src, lib := filepath.Join(t.TempDir(), "fake.c"), filepath.Join(dir, name)
	if err := os.WriteFile(src, []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-o", lib, src).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	return lib
}

func TestOpen(t *testing.T) {
	t.Run("go is the sequential pure Go backend, once per process", func(t *testing.T) {
		a, r, err := Open(Go)
		if err != nil {
			t.Fatal(err)
		}
		b, _, err := Open(Go)
		if err != nil {
			t.Fatal(err)
		}
		if a != b || a.Kind != Go || r.Backend != Go || r.Warning() != "" {
			t.Errorf("Open(go) = %p %p kind %q report %+v, want one go backend and no warning", a, b, a.Kind, r)
		}
	})
	t.Run("an unknown choice is refused", func(t *testing.T) {
		if _, _, err := Open("tpu"); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("Open(tpu) = %v, want InvalidArgument", err)
		}
	})
}

// Whatever is wrong with the plugin, Open falls back with one line.
func TestOpenFallsBack(t *testing.T) {
	fallsBack := func(t *testing.T, plugin, want string) {
		t.Helper()
		t.Setenv(PluginVariable, plugin)
		for _, choice := range []string{Auto, CUDA} {
			b, r, err := Open(choice)
			if err != nil {
				t.Fatalf("Open(%s): %v", choice, err)
			}
			w := r.Warning()
			if b.Kind != Go || w == "" || strings.Contains(w, "\n") || (xlaBuilt && !strings.Contains(w, want)) {
				t.Errorf("Open(%s) = kind %q, warning %q; want the go backend and one line with %q", choice, b.Kind, w, want)
			}
		}
	}
	if !xlaBuilt {
		t.Skip("built without XLA: there is no plugin to load")
	}
	t.Run("a plugin that is not there", func(t *testing.T) {
		fallsBack(t, filepath.Join(t.TempDir(), "absent.so"), "absent.so")
	})
	t.Run("a file that is no library", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "text.so")
		if err := os.WriteFile(path, []byte("not a library"), 0o644); err != nil {
			t.Fatal(err)
		}
		fallsBack(t, path, "text.so")
	})
	t.Run("a library without GetPjrtApi", func(t *testing.T) {
		fallsBack(t, buildLibrary(t, t.TempDir(), "fake.so", "int answer(void) { return 42; }"), "fake.so")
	})
	t.Run("a plugin whose GetPjrtApi answers nothing", func(t *testing.T) {
		fallsBack(t, buildLibrary(t, t.TempDir(), "null.so", "void *GetPjrtApi(void) { return 0; }"), "null.so")
	})
	t.Run("no plugin on the machine is no warning for auto, one for cuda", func(t *testing.T) {
		r := &Report{Asked: Auto, Reason: errNoPlugin.Error(), NoPlugin: true}
		if w := r.Warning(); w != "" {
			t.Errorf("auto without a plugin warns %q, want silence", w)
		}
		if r.Asked = CUDA; r.Warning() == "" {
			t.Error("cuda without a plugin is silent, want a warning")
		}
	})
}

// A JAX installation as pip lays it out, with libraries made by cc.
func TestFindPlugin(t *testing.T) {
	root := t.TempDir()
	site := filepath.Join(root, "lib/python3.12/site-packages")
	lib := buildLibrary(t, filepath.Join(site, "jax_plugins/xla_cuda13"), "xla_cuda_plugin.so",
		"int a(void) { return 1; }")
	cudart := buildLibrary(t, filepath.Join(site, "nvidia/cu13/lib"), "libcudart.so.13", "int b(void) { return 1; }")
	if err := os.MkdirAll(filepath.Join(site, "nvidia/cu13/nvvm/libdevice"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("VIRTUAL_ENV", root)
	t.Setenv(PluginVariable, "")
	t.Setenv("XLA_FLAGS", "--kept=1")
	want, err := filepath.EvalSymlinks(lib)
	if err != nil {
		t.Fatal(err)
	}
	p, err := findPlugin()
	if err != nil || p.path != want {
		t.Fatalf("findPlugin() = %+v, %v, want %s", p, err, want)
	}
	r := &Report{}
	p.prepareEnvironment(r)
	if got := os.Getenv("XLA_FLAGS"); !strings.HasPrefix(got, "--kept=1 --xla_gpu_cuda_data_dir=") ||
		!strings.HasSuffix(got, "nvidia/cu13") {
		t.Errorf("XLA_FLAGS = %q, want the user's flag, then the data directory", got)
	}
	libs := p.preload()
	if len(libs) != len(nvidiaLibraries) || filepath.Base(libs[0].Path) != filepath.Base(cudart) {
		t.Fatalf("preload() = %+v, want the whole list, libcudart first", libs)
	}
	if xlaBuilt && libs[0].Error != "" {
		t.Errorf("libcudart: %s, want it loaded", libs[0].Error)
	}
	if libs[1].Error != "not there" {
		t.Errorf("libnvrtc: %q, want \"not there\"", libs[1].Error)
	}
}

// The default mode of the pure Go backend deadlocks, and the default imports
// download: neither may appear anywhere in the project.
func TestOneConstructor(t *testing.T) {
	_, file, _, _ := runtime.Caller(0)
	root := filepath.Join(filepath.Dir(file), "../..")
	forbidden := []string{"backends/" + "default", "xla/" + "autoinstall", "gobackend." + "New", "gobackend." +
		"GetBackend",
		"compute." + "MustNew", "compute." + "New(", "simplego", "pjrt_cpu_" + "static"}
	constructor := "compute." + "NewWithConfig("
	var found []string
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		// tidy names them to forbid them
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != root || d.Name() == "vendor" || d.Name() == "tmp" ||
			d.Name() == "tidy") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || path == file {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, f := range forbidden {
			if strings.Contains(string(text), f) {
				t.Errorf("%s contains %q: open backends with accel.Open", path, f)
			}
		}
		if strings.Contains(string(text), constructor) {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || filepath.Base(found[0]) != "accel.go" {
		t.Errorf("%s is called in %v, want only in accel.go", constructor, found)
	}
}
