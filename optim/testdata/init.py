#!/usr/bin/env python3
"""Golden vectors of the initializers, from the formula in optim.Init's comment.

Written without the Go code at hand: Python integers and floats (IEEE float64)
only. Prints init.hex: kind seed namehash key A B (bits of float32) and the bits of
the first 8 weights, all hexadecimal.
"""
import struct

M = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15


def mix64(z):
    z ^= z >> 30
    z = z * 0xBF58476D1CE4E5B9 & M
    z ^= z >> 27
    z = z * 0x94D049BB133111EB & M
    return z ^ (z >> 31)


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def weights(kind, seed, name, key, a, b, n):
    h = mix64(mix64(mix64((seed + GAMMA) & M) ^ name) ^ key)
    stream = [mix64((h + j * GAMMA) & M) for j in range(1, 3 * n + 1)]
    for i in range(n):
        if kind == 1:
            yield 0.0
        elif kind == 2:
            u = (stream[i] >> 11) * 2.0**-53
            w = f32(a + u * (b - a))
            yield a if w >= b else w
        else:
            s = 0
            for x in stream[3 * i : 3 * i + 3]:
                s += sum(x >> k & 0xFFFF for k in (0, 16, 32, 48))
            z = (2 * s - 786420) * 2.0**-17
            yield f32(a + b * z)


def main():
    for kind, a, b in ((1, 0.0, 0.0), (2, -0.05, 0.05), (2, 1.0, 1.0000001), (2, -3e38, 3e38), (3, 0.0, 0.01), (3, -2.5, 3.0)):
        for seed, name, key in ((0, 1, 0), (0, 1, 1), (42, 0x1234567890ABCDEF, 7), (M, M, M), (1, 2, 1 << 40)):
            a32, b32 = f32(a), f32(b)
            ws = weights(kind, seed, name, key, a32, b32, 8)
            print("%x %x %x %x %x %x" % (kind, seed, name, key, bits(a32), bits(b32)), *("%08x" % bits(w) for w in ws))


main()
