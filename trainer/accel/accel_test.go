package accel

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"github.com/rowraft/rowraft"
)

// buildLibrary compiles a shared library from C, or skips the test.
func buildLibrary(t *testing.T, dir, name, source string, flags ...string) string {
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
	flags = append(flags, "-shared", "-fPIC", "-o", lib, src)
	if out, err := exec.Command(cc, flags...).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	return lib
}

// fakePlugin compiles testdata/fakeplugin.c with some of its macros.
func fakePlugin(t *testing.T, macros ...string) string {
	t.Helper()
	source, err := os.ReadFile("testdata/fakeplugin.c")
	if err != nil {
		t.Fatal(err)
	}
	return buildLibrary(t, t.TempDir(), "fakeplugin.so", string(source), macros...)
}

func TestOpenTheCPU(t *testing.T) {
	a, r, err := Open(CPU)
	if err != nil {
		t.Fatal(err)
	}
	b, _, err := Open(CPU)
	if err != nil {
		t.Fatal(err)
	}
	if a != b || a.Device != CPU || r.Device != CPU || len(r.Devices) != 1 || r.Line() != "device: cpu, as asked" {
		t.Errorf("Open(cpu) = %p %p device %q report %+v, want one backend", a, b, a.Device, r)
	}
	if _, _, err := Open("tpu"); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("Open(tpu) = %v, want InvalidArgument", err)
	}
}

// TestBrokenPlugins: auto uses the CPU and states in one line why. CUDA is an error that names the plugin, what is
// wrong with it and what to do.
func TestBrokenPlugins(t *testing.T) {
	if !xlaBuilt {
		t.Skip("built without XLA: there is no plugin to load")
	}
	written := func(text string) string {
		path := filepath.Join(t.TempDir(), "text.so")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, tc := range []struct {
		name, plugin string
		want         []string
	}{
		{"a plugin that is not there", filepath.Join(t.TempDir(), "absent.so"), []string{"absent.so", PluginVariable}},
		{"a folder", t.TempDir(), []string{"is not a file"}},
		{"a file that is no library", written("not a library"), []string{"text.so"}},
		{"a library without GetPjrtApi", buildLibrary(t, t.TempDir(), "none.so", "int answer(void) { return 42; }"),
			[]string{"none.so", "no PJRT plugin", "GetPjrtApi"}},
		{"a GetPjrtApi that returns nothing", buildLibrary(t, t.TempDir(), "null.so",
			"void *GetPjrtApi(void) { return 0; }"), []string{"null.so", "returns no table"}},
		{"a short table", fakePlugin(t, "-DTABLE=40"), []string{"has 360 bytes: want 488 or more"}},
		{"another major version", fakePlugin(t, "-DMAJOR=1"), []string{"PJRT API is 1.104: this binary knows 0.x"}},
		{"no GPU", fakePlugin(t, `-DREFUSES="no visible GPU devices"`),
			[]string{"fakeplugin.so", "no visible GPU devices", "rowraft-trainer probe"}},
		{"a structure that has grown too much", fakePlugin(t, "-DMINOR=250", "-DGROWN=72"),
			[]string{"Unexpected PJRT_Client_Create_Args size: expected 160, got 152", "grown by more than the 64 bytes",
				"older plugin"}},
		{"a structure that has grown without a new version", fakePlugin(t, "-DGROWN=8"),
			[]string{"Unexpected PJRT_Client_Create_Args size: expected 96, got 88"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv(PluginVariable, tc.plugin)
			b, r, err := Open(Auto)
			if err != nil {
				t.Fatal(err)
			}
			if line := r.Line(); b.Device != CPU || strings.Contains(line, "\n") ||
				!strings.HasPrefix(line, "device: cpu, because CUDA cannot be used: ") {
				t.Errorf("Open(auto) = device %q, line %q; want the CPU and one line", b.Device, line)
			}
			b, r, err = Open(CUDA)
			if b != nil || rowraft.CodeOf(err) != rowraft.CodePrecondition {
				t.Fatalf("Open(cuda) = %v, %v, want Precondition", b, err)
			}
			for _, want := range append(tc.want, "device auto or cpu") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Open(cuda): %v; want %q", err, want)
				}
			}
			if r.Device != "" {
				t.Errorf("the report has device %q, want none", r.Device)
			}
		})
	}
}

// A machine without a plugin is no warning for auto, and for CUDA an error that states where Open looked.
func TestNoPlugin(t *testing.T) {
	t.Setenv(PluginVariable, "")
	t.Setenv("VIRTUAL_ENV", t.TempDir())
	if _, err := findPlugin(); err == nil {
		t.Skip("this machine has a CUDA plugin")
	}
	b, r, err := Open(Auto)
	if err != nil || b.Device != CPU || r.Line() != "device: cpu, because this machine has no CUDA plugin" {
		t.Errorf("Open(auto) = %v, %q, %v", b, r.Line(), err)
	}
	_, _, err = Open(CUDA)
	wants := []string{PluginVariable, "jax_plugins/xla_cuda*/xla_cuda_plugin.so", `pip install "jax[cuda13]"`}
	if !xlaBuilt {
		wants = []string{"built without the XLA backend", "built with cgo"}
	}
	for _, want := range wants {
		if rowraft.CodeOf(err) != rowraft.CodePrecondition || !strings.Contains(err.Error(), want) {
			t.Errorf("Open(cuda): %v; want %q", err, want)
		}
	}
}

// TestFakeDevice: a plugin that is newer than the library gets larger structures, whose results come back. A function
// that a plugin lacks is an error.
func TestFakeDevice(t *testing.T) {
	if !xlaBuilt {
		t.Skip("built without XLA")
	}
	closeCUDA := func() {
		opened.Lock()
		defer opened.Unlock()
		if opened.cuda != nil {
			opened.cuda.Finalize()
			opened.cuda = nil
		}
	}
	for _, tc := range []struct {
		name    string
		macros  []string
		version string
		widened bool
	}{
		{"of the library's version", nil, "0.104", false},
		{"older, with a shorter table", []string{"-DMINOR=80", "-DTABLE=100"}, "0.80", false},
		{"newer, with a larger structure", []string{"-DMINOR=140", "-DGROWN=64", "-DTABLE=200"}, "0.140", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv(PluginVariable, fakePlugin(t, tc.macros...))
			b, r, err := Open(CUDA)
			if err != nil {
				t.Fatal(err)
			}
			defer closeCUDA()
			if b.Device != CUDA || r.PluginVersion != tc.version || r.Widened != tc.widened || len(r.Devices) != 1 ||
				!strings.HasPrefix(r.Line(), "device: cuda, as asked: FakeDevice(id=0)") {
				t.Errorf("report %+v, line %q", r, r.Line())
			}
			again, _, err := Open(Auto)
			if err != nil || again != b {
				t.Errorf("Open(auto) = %p, %v, want the same backend %p", again, err, b)
			}
			_, err = b.BufferFromFlatData(0, []float32{1}, shapes.Make(dtypes.Float32, 1))
			if err == nil || !strings.Contains(err.Error(), "lacks this function") {
				t.Errorf("a copy to a device without PJRT_Client_BufferFromHostBuffer: %v", err)
			}
		})
	}
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
