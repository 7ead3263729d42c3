package replica

import (
	"testing"

	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/shard/rowstore/coldfile"
)

func TestASmallShardIsScrubbedInTenMinutes(t *testing.T) {
	for _, tc := range []struct {
		name   string
		tables []shard.TableStats
		most   int
		want   int
	}{
		{"empty", nil, 4 << 20, minScrub},
		{"small", []shard.TableStats{{Bytes: 600 << 20}, {Bytes: 60 << 20}}, 4 << 20, 1153433},
		{"large", []shard.TableStats{{Bytes: 100 << 30}}, 4 << 20, 4 << 20},
		{"rows in a file", []shard.TableStats{{Bytes: 1 << 20, Tier: coldfile.Stats{Records: 1}}}, 4 << 20, 4 << 20},
		{"many shards", []shard.TableStats{{Bytes: 100 << 30}}, 1 << 10, minScrub},
	} {
		if got := scrubShare(tc.tables, tc.most); got != tc.want {
			t.Errorf("%s: %d bytes a second, want %d", tc.name, got, tc.want)
		}
	}
}
