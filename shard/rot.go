//go:build rowraft_canary

package shard

// Rot implements the sabotage canary.MemoryRots: it flips a bit of one row. It reports whether there is a row.
func (m *Machine) Rot() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range m.mu.tables.list {
		if t.rows.Rot() {
			return true
		}
	}
	return false
}
