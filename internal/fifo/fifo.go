package fifo

// keptItems is how large an empty queue may stay.
const keptItems = 64

// Queue returns items in the order in which they were added. The zero Queue is empty. Not safe for concurrent use.
type Queue[T any] struct {
	items []T // the items before next are taken
	next  int
}

// Len returns the number of items.
func (q *Queue[T]) Len() int { return len(q.items) - q.next }

// Add adds an item at the end.
func (q *Queue[T]) Add(item T) {
	if len(q.items) == cap(q.items) && q.next > len(q.items)/2 {
		n := copy(q.items, q.items[q.next:])
		clear(q.items[n:])
		q.items, q.next = q.items[:n], 0
	}
	q.items = append(q.items, item)
}

// Take removes the first item and returns it; false: the queue is empty.
func (q *Queue[T]) Take() (item T, ok bool) {
	if q.Len() == 0 {
		return item, false
	}
	var none T
	item, q.items[q.next] = q.items[q.next], none
	q.next++
	if q.Len() == 0 {
		q.items, q.next = q.items[:0], 0
		if cap(q.items) > keptItems {
			q.items = nil
		}
	}
	return item, true
}
