#!/usr/bin/env python3
"""Computes hash.txt from docs/formats/hash.md, sharing no code with the Go packages."""

M = (1 << 64) - 1


def mix64(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & M
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & M
    return z ^ (z >> 31)


def hash64(table, key):
    return mix64(key ^ mix64((table % (1 << 48) + 0x9E3779B97F4A7C15) & M))


tables = [1, 2, 0xDEADBEEF, 0x61C8864680B583EB, 0xFEDCBA9876543210, M]
keys = [0, 1, 2, 7, 4096, 1 << 32, (1 << 40) - 1, 1 << 40, (3 << 40) | 12345, 1 << 63, M - 1, M]
print("# kind table key hash slot; written by hash.py")
for kind in ("sparse", "dense"):
    for t in tables:
        for k in keys:
            place = k if kind == "sparse" else k >> 40 << 40
            h = hash64(t, place)
            print(f"{kind} {t:016x} {k:016x} {h:016x} {h >> 52}")
