package trainer

import (
	"path/filepath"

	"github.com/rowraft/rowraft/trainer/data"
)

// relativeTo makes the relative paths of a job file relative to dir, the folder of the file. Destinations of
// checkpoints are no such paths: they are absolute, or URLs.
func (c *Config) relativeTo(dir string) {
	d := &c.Data
	for _, path := range []*string{&d.File, &d.Schema, &d.Follow, &d.Images, &d.Labels, &d.HeldImages, &d.HeldLabels,
		&c.TensorBoard.Dir, &c.Validation} {
		if *path != "" && *path != data.Stdin && !filepath.IsAbs(*path) {
			*path = filepath.Join(dir, *path)
		}
	}
}
