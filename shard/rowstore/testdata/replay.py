#!/usr/bin/env python3
"""A table replayed from the written formulas alone, and its digest.

Hash and slot: package clustermap. Initializer: optim.Init. Rules: Duchi 2011;
Kingma & Ba 2015, algorithm 1. Record and digest: package rowstore. Needs numpy and
the reference XXH3 (pip install numpy xxhash). Prints replay.hex: optimizer, rows, digest.

Three pushes of keys k*k for k in 0 … 199 (push p leaves out the keys with k % 3 == p),
dim 19, gradient j of key k in push p = ((31 k + 17 j + 7 p) mod 201 - 100) / 64.
"""
import struct

import numpy as np
import xxhash

M = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
TABLE, SEED, DIM, LR = 0x5EED5EED5EED, 7, 19, np.float32(0.1)
NAME = 0x76033E85F0ACF92D
f = np.float32


def mix64(z):
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & M
    z = (z ^ z >> 27) * 0x94D049BB133111EB & M
    return z ^ z >> 31


def initial(key):
    h = mix64(mix64(mix64((SEED + GAMMA) & M) ^ NAME) ^ key)
    a, b = -0.5, 0.25
    return np.array([a + (mix64((h + j * GAMMA) & M) >> 11) * 2.0**-53 * (b - a) for j in range(1, DIM + 1)], f)


def sgd(w, s, g):
    return w - LR * g, s


def adagrad(w, s, g):
    s = s + g * g
    return w - LR * g / (np.sqrt(s) + f(1e-8)), s


def adam(w, s, g):
    b1, b2, one = f(0.9), f(0.999), f(1)
    m, v, t1, t2 = s[:DIM], s[DIM : 2 * DIM], s[-2] * b1, s[-1] * b2
    m = b1 * m + (one - b1) * g
    v = b2 * v + (one - b2) * (g * g)
    w = w - LR * (m / (one - t1)) / (np.sqrt(v / (one - t2)) + f(1e-8))
    return w, np.concatenate([m, v, [t1, t2]]).astype(f)


def main():
    for name, rule, state in (
        ("sgd", sgd, np.zeros(0, f)),
        ("adagrad", adagrad, np.full(DIM, 0.1, f)),
        ("adam", adam, np.array([0] * (2 * DIM) + [1, 1], f)),
    ):
        rows, counters = {}, {}
        for p in range(3):
            for k in range(200):
                if k % 3 == p:
                    continue
                key = k * k
                slot = mix64(key ^ mix64((TABLE + GAMMA) & M)) >> 52
                counters[slot] = counters.get(slot, 0) + 1
                g = np.array([((31 * k + 17 * j + 7 * p) % 201 - 100) / 64 for j in range(DIM)], f)
                _, w, s = rows.get(key, (0, initial(key), state))
                w, s = rule(w, s, g)
                assert w.dtype == f and s.dtype == f
                rows[key] = (counters[slot], w, s)
        digest = 0
        for key, (version, w, s) in rows.items():
            data = struct.pack("<QQ", key, version) + w.tobytes() + s.tobytes()
            digest += xxhash.xxh3_128(data, seed=0).intdigest()
        print(name, len(rows), "%032x" % (digest % (1 << 128)))


main()
