package depot

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rowraft/rowraft"
)

// TestWithin: a destination near an allowed one is not below it.
func TestWithin(t *testing.T) {
	root := t.TempDir()
	ckpt, evil := filepath.Join(root, "ckpt"), filepath.Join(root, "evil")
	for _, dir := range []string{ckpt, evil, ckpt + "/deep"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		ckpt + "/out": evil, root + "/link": ckpt, ckpt + "/self": ckpt + "/deep", ckpt + "/chain": ckpt + "/out", ckpt +
			"/relative": "../evil",
		ckpt + "/nowhere": root + "/later", ckpt + "/loop": ckpt + "/loop",
	} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	allowed := []string{ckpt, "s3://models/ctr", "s3://whole", "s3://slash/"}
	for destination, want := range map[string]bool{
		ckpt: true, ckpt + "/": true, ckpt + "//": true, ckpt + "/./a": true, ckpt + "/a/b": true, "file://" + ckpt +
			"/a": true, root + "/link/a": true, ckpt + "/self/a": true,
		ckpt + "-evil": false, root: false, "/": false, "": false, ".": false, "ckpt": false, root + "/CKPT": false,
		"file://localhost" + ckpt: false, "FILE://" + ckpt: false,
		ckpt + "/../evil": false, ckpt + "/..": false, ckpt + "/a/../b": false, root + "/evil/../ckpt": false, "file://" +
			ckpt + "/../evil": false,
		ckpt + "/%2e%2e/evil": true, // these are names of directories: no part of a path is decoded
		ckpt + "/...":         true,
		ckpt + "/out":         false, ckpt + "/out/a": false, ckpt + "/chain/a": false, ckpt + "/relative/a": false,
		"file://" + ckpt + "/out": false,
		ckpt + "/nowhere":         false, ckpt + "/nowhere/a": false, ckpt + "/loop": false, ckpt + "/loop/a": false,
		"s3://models/ctr": true, "s3://models/ctr/": true, "s3://models/ctr/a": true, "s3://models/ctr/%2e%2e/x": true,
		"s3://whole": true, "s3://whole/": true, "s3://whole/a": true, "s3://slash/a": true,
		"s3://models/ctr-evil": false, "s3://models/ct": false, "s3://models": false, "s3://models/": false,
		"s3://models2/ctr": false, "s3://models//ctr": false, "s3:///models/ctr": false,
		"s3://models/ctr/../x": false, "s3://models/ctr/..": false, "s3://models/CTR": false, "S3://models/ctr": false,
		"s3://Models/ctr": false, "s3://whole2": false, "s3://": false,
		"s3:/" + ckpt: false, "models/ctr": false, "/models/ctr": false, "http://models/ctr": false,
	} {
		if got, err := Within(t.Context(), allowed, destination); got != want || err != nil {
			t.Errorf("%q: %v (%v), want %v", destination, got, err, want)
		}
	}
	for _, nothing := range [][]string{nil, {""}, {"."}, {"s3://"}, {"ckpt"}} {
		if got, err := Within(t.Context(), nothing, ckpt); got || err != nil {
			t.Errorf("%q allows %s (%v)", nothing, ckpt, err)
		}
	}
	if got, err := Within(t.Context(), []string{"/"}, ckpt); !got || err != nil {
		t.Errorf("/ does not allow %s (%v)", ckpt, err)
	}
	if got, err := Within(t.Context(), []string{root + "/link"}, ckpt+"/a"); !got || err != nil {
		t.Errorf("an allowed link is not followed: %v", err)
	}
}

func TestCheckAllowed(t *testing.T) {
	for allowed, ok := range map[string]bool{
		"/ckpt": true, "/": true, "file:///ckpt": true, "s3://models": true, "s3://models/ctr/": true,
		"": false, "ckpt": false, "./ckpt": false, "/ckpt/../x": false, "s3://": false, "s3:///ctr": false,
		"s3://models/../x": false, "http://models": false, "file://ckpt": false,
	} {
		if err := CheckAllowed(allowed); (err == nil) != ok || !ok && rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("%q: %v, want it allowed: %v", allowed, err, ok)
		}
	}
}
