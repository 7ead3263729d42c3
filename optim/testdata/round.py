#!/usr/bin/env python3
"""Golden vectors of the rounding of a push to bfloat16, from docs/formats/rules.md ("Storage").

Written without the Go code at hand, with Python integers only. Prints round.hex: key, then pairs of the bits of a
float32 and of the float32 that it is rounded to, all hexadecimal.
"""
M = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15


def mix64(z):
    z ^= z >> 30
    z = z * 0xBF58476D1CE4E5B9 & M
    z ^= z >> 27
    z = z * 0x94D049BB133111EB & M
    return z ^ (z >> 31)


def draw(key, i, b):
    h = mix64((key + GAMMA) & M)
    x = b ^ (h % 2**32 + i * (h // 2**32 | 1)) % 2**32
    x = x * 0x7FEB352D % 2**32
    x = (x ^ x // 2**15) * 0x846CA68B % 2**32
    return x // 2**16


def rounded(key, i, b):
    if b % 2**31 > 0x7F800000:
        return b  # a NaN
    up = b % 2**16 + draw(key, i, b) >= 2**16
    return b // 2**16 * 2**16 + up * 2**16


special = [0, 1 << 31, 1, 0x8000, 0xFFFF, 0x10000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000,
           0x7F800001, 0x3F800000, 0x3F808000, 0xBF80FFFF, 0x007FFFFF]
for key in [0, 1, 2, 12345, 1 << 40, M]:
    n = {0: 17, 1: 40}.get(key, 19)
    bits = [special[i % 17] if (i + key) % 3 else mix64(key * 100 + i & M) % 2**32 for i in range(n)]
    print("%x" % key, *("%08x %08x" % (b, rounded(key, i, b)) for i, b in enumerate(bits)))
