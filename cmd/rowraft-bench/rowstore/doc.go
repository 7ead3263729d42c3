// Package rowstore measures the row store by itself: the command `rowraft-bench rowstore`.
package rowstore
