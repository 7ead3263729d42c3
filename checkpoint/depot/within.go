package depot

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rowraft/rowraft"
)

// CheckAllowed refuses an allowed destination that Within could never match.
//
// Errors: CodeInvalidArgument.
func CheckAllowed(allowed string) error {
	rest, isBucket := strings.CutPrefix(allowed, "s3://")
	if slices.Contains(strings.Split(allowed, "/"), "..") || isBucket && (rest == "" || rest[0] == '/') || !isBucket &&
		!filepath.IsAbs(localPath(allowed)) {
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"allowed checkpoint destination %q: want an absolute path or s3://bucket/prefix, without ..", allowed)
	}
	return nil
}

// Within reports whether a destination is one of the allowed ones or lies below one.
//
// Names are compared whole and with their case: /ckpt-evil is not below /ckpt. A destination
// with .. is refused. Links on this machine are followed first; one that leads nowhere, or that
// this process may not read, is refused. The destinations in buckets are compared as text.
//
// Errors: CodePrecondition if a directory hangs; that of ctx.
func Within(ctx context.Context, allowed []string, destination string) (bool, error) {
	if slices.Contains(strings.Split(destination, "/"), "..") {
		return false, nil
	}
	if rest, isBucket := strings.CutPrefix(destination, "s3://"); isBucket {
		return slices.ContainsFunc(allowed, func(a string) bool {
			root, isBucket := strings.CutPrefix(a, "s3://")
			return isBucket && isBelow(strings.TrimRight(root, "/"), strings.TrimRight(rest, "/"))
		}), nil
	}
	dir := localPath(destination)
	if !filepath.IsAbs(dir) {
		return false, nil
	}
	dir = filepath.Clean(dir)
	c := &call[bool]{depot: dir, what: "follow links", patience: patience, f: func(context.Context, *watch) (bool, error) {
		real, ok := realPath(dir)
		return ok && slices.ContainsFunc(allowed, func(a string) bool {
			root, ok := realPath(localPath(a))
			return ok && isBelow(strings.TrimSuffix(root, "/"), real)
		}), nil
	}}
	return c.await(ctx)
}

func localPath(url string) string { return strings.TrimPrefix(url, "file://") }

func isBelow(root, name string) bool { return name == root || strings.HasPrefix(name, root+"/") }

// realPath follows the links of the part of an absolute path that exists. It reports false for
// another path, and if it cannot tell where the path leads.
func realPath(path string) (string, bool) {
	if !filepath.IsAbs(path) {
		return "", false
	}
	path = filepath.Clean(path)
	for at, rest := path, ""; ; at, rest = filepath.Dir(at), filepath.Join(filepath.Base(at), rest) {
		real, err := filepath.EvalSymlinks(at)
		if err == nil {
			return filepath.Join(real, rest), true
		}
		if _, lerr := os.Lstat(at); !errors.Is(lerr, fs.ErrNotExist) || at == filepath.Dir(at) {
			return "", false // a link that leads nowhere, or a directory that this process may not read
		}
	}
}
