package trainer

import (
	"path/filepath"

	"github.com/rowraft/rowraft/trainer/data"
)

// relativeTo makes the relative paths of a job file relative to dir, the folder of the file. Destinations of
// checkpoints are no such paths: they are absolute, or URLs.
func (c *Config) relativeTo(dir string) {
	d := &c.Data
	paths := []*string{&d.Schema, &d.Follow, &d.Images, &d.Labels, &d.HeldImages, &d.HeldLabels,
		&c.TensorBoard.Dir, &c.Runs}
	for i := range d.File {
		paths = append(paths, &d.File[i])
	}
	for i := range c.Validation {
		paths = append(paths, &c.Validation[i])
	}
	for _, path := range paths {
		if *path != "" && *path != data.Stdin && !filepath.IsAbs(*path) {
			*path = filepath.Join(dir, *path)
		}
	}
}
