package clustermap

import (
	"slices"
	"strings"

	"github.com/rowraft/rowraft"
)

// ZoneLabel is the label by which the replicas of a shard are spread.
const ZoneLabel = "zone"

// Limits for the labels of a server.
const (
	maxLabels     = 16
	maxLabelBytes = 63 // of a key or a value
)

// ParseLabels parses labels as operators write them: key=value, separated by commas. It returns
// them sorted by key, so that equal labels give equal strings.
//
// Errors: CodeInvalidArgument.
func ParseLabels(s string) (string, error) {
	if strings.TrimSpace(s) == "" {
		return "", nil
	}
	labels := strings.Split(s, ",")
	for i, l := range labels {
		labels[i] = strings.TrimSpace(l)
		k, v, ok := strings.Cut(labels[i], "=")
		if !ok || !labelWord(k) || !labelWord(v) {
			return "", rowraft.Errorf(rowraft.CodeInvalidArgument,
				"label %q: want key=value, each 1 to %d letters, digits, '-', '_', '.' or '/'", l, maxLabelBytes)
		}
	}
	key := func(l string) string { k, _, _ := strings.Cut(l, "="); return k }
	slices.SortFunc(labels, func(a, b string) int { return strings.Compare(key(a), key(b)) })
	for i := 1; i < len(labels); i++ {
		if key(labels[i]) == key(labels[i-1]) {
			return "", rowraft.Errorf(rowraft.CodeInvalidArgument, "label %s is given twice: give it once", key(labels[i]))
		}
	}
	if len(labels) > maxLabels {
		return "", rowraft.Errorf(rowraft.CodeInvalidArgument, "%d labels: want at most %d", len(labels), maxLabels)
	}
	return strings.Join(labels, ","), nil
}

func labelWord(s string) bool {
	return len(s) >= 1 && len(s) <= maxLabelBytes &&
		strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./") == ""
}

// Label returns the value of a label of n, empty if n does not have it.
func (n *Node) Label(key string) string {
	for l := range strings.SplitSeq(n.Labels, ",") {
		if k, v, _ := strings.Cut(l, "="); k == key {
			return v
		}
	}
	return ""
}
