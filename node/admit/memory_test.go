package admit

import (
	"fmt"
	"os"
	"testing"
	"testing/fstest"
)

func TestFreeMemory(t *testing.T) {
	meminfo := "MemTotal:       24000 kB\nMemFree:          100 kB\nMemAvailable:    5000 kB\n"
	pages := fmt.Sprintf("1000 %d 3 4 5 6 7\n", 1<<20/os.Getpagesize()) // 1 MiB resident
	for name, tc := range map[string]struct {
		files map[string]string
		want  uint64
	}{
		"a machine that tells nothing": {nil, 0},
		"what the machine has left":    {map[string]string{"proc/meminfo": meminfo}, 5000 << 10},
		"a cgroup without a limit": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "max\n"}, 5000 << 10},
		"a cgroup's limit": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "3145728\n", "proc/self/statm": pages}, 2 << 20},
		"that of the one above": {map[string]string{"proc/self/cgroup": "1:name=systemd:/x\n0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "9999999\n", "sys/fs/cgroup/a/memory.max": "3145728\n", "proc/self/statm": pages},
			2 << 20},
		"a limit above what is left": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "99999999\n", "proc/self/statm": pages}, 5000 << 10},
		"beyond its limit": {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1000\n",
			"proc/self/statm": pages}, 1},
		"nonsense": {map[string]string{"proc/meminfo": "MemAvailable: x kB\n",
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "y\n"}, 0},
	} {
		disk := fstest.MapFS{}
		for file, text := range tc.files {
			disk[file] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := FreeMemory(disk); got != tc.want {
			t.Errorf("%s: %d bytes, want %d", name, got, tc.want)
		}
	}
	if _, err := os.Stat("/proc/meminfo"); err == nil && FreeMemory(os.DirFS("/")) == 0 {
		t.Error("this machine tells nothing")
	}
}
