// Package number reads numbers from text, fast.
package number

import (
	"math"
	"strconv"
	"unsafe"
)

// exactPowers are the powers of ten that a float64 holds exactly.
var exactPowers = [...]float64{1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
	1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22}

// Parse returns the finite number that strconv.ParseFloat(value, 64) returns, or false.
//
// A decimal of at most 15 digits is an integer that a float64 holds exactly over a power of ten that it holds exactly,
// so that one division rounds it correctly (Clinger, "How to read floating point numbers accurately", 1990).
func Parse(value []byte) (float64, bool) {
	digits, negative := value, false
	if len(digits) > 0 && (digits[0] == '-' || digits[0] == '+') {
		negative, digits = digits[0] == '-', digits[1:]
	}
	if n := len(digits); n == 0 || n > 16 { // 15 digits and a point
		return parseFloat(value)
	}
	mantissa, point := uint64(0), -1
	for i, c := range digits {
		if d := c - '0'; d <= 9 {
			mantissa = mantissa*10 + uint64(d)
		} else if c == '.' && point < 0 && len(digits) > 1 {
			point = i
		} else {
			return parseFloat(value)
		}
	}
	if point < 0 && len(digits) == 16 {
		return parseFloat(value)
	}
	x := float64(mantissa)
	if point >= 0 {
		x /= exactPowers[len(digits)-1-point]
	}
	if negative {
		x = -x
	}
	return x, true
}

func parseFloat(value []byte) (float64, bool) {
	// ParseFloat keeps nothing of its argument unless it fails.
	x, err := strconv.ParseFloat(unsafe.String(unsafe.SliceData(value), len(value)), 64)
	return x, err == nil && !math.IsNaN(x) && !math.IsInf(x, 0)
}

// ParseID returns a decimal uint64.
func ParseID(value []byte) (uint64, bool) {
	if len(value) == 0 || len(value) > 20 {
		return 0, false
	}
	id := uint64(0)
	for _, c := range value {
		d := uint64(c - '0')
		if d > 9 || id > (math.MaxUint64-d)/10 {
			return 0, false
		}
		id = id*10 + d
	}
	return id, true
}

// logs has ln(1 + n) for the small integers, of which counts mostly are.
var logs = func() (t [1024]float64) {
	for n := range t {
		t[n] = math.Log1p(float64(n))
	}
	return t
}()

// SignedLog returns sign(x)·ln(1 + |x|).
func SignedLog(x float64) float64 {
	a := math.Abs(x)
	if n := int(min(a, float64(len(logs)))); n < len(logs) && float64(n) == a {
		return math.Copysign(logs[n], x)
	}
	return math.Copysign(math.Log1p(a), x)
}
