package tidy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	formatPage   = regexp.MustCompile(`docs/formats/[a-z-]+\.md`)
)

// DeadLinks lists relative links in Markdown files, and pages of docs/formats
// named in Go files, that lead nowhere.
func DeadLinks(root string) ([]string, error) {
	var dead []string
	check := func(from, target string) {
		if _, err := os.Stat(target); errors.Is(err, fs.ErrNotExist) {
			dead = append(dead, fmt.Sprintf("%s refers to %s", from, target))
		}
	}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if p != root && skippedDir(d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		switch filepath.Ext(p) {
		case ".md":
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			for _, m := range markdownLink.FindAllStringSubmatch(string(b), -1) {
				target, _, _ := strings.Cut(m[1], "#")
				if target != "" && !strings.Contains(target, ":") {
					check(p, filepath.Join(filepath.Dir(p), target))
				}
			}
		case ".go":
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			for _, page := range formatPage.FindAllString(string(b), -1) {
				check(p, filepath.Join(root, page))
			}
		}
		return nil
	})
	return dead, err
}
