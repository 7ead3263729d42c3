#!/usr/bin/env python3
"""Writes the golden file of docs/formats/clustermap.md by hand: no protobuf library, own CRC."""
import os, struct

def crc32c(b):
    c = 0xFFFFFFFF
    for x in b:
        c ^= x
        for _ in range(8):
            c = (c >> 1) ^ (0x82F63B78 if c & 1 else 0)
    return c ^ 0xFFFFFFFF

assert crc32c(b"123456789") == 0xE3069283

def varint(n):
    out = b""
    while n > 0x7F:
        out += bytes([n & 0x7F | 0x80])
        n >>= 7
    return out + bytes([n])

def num(field, n): return varint(field << 3) + varint(n)
def data(field, b): return varint(field << 3 | 2) + varint(len(b)) + b

def frame(payload, version=1):
    head = b"RRCM" + struct.pack("<II", version, len(payload))
    return head + struct.pack("<I", crc32c(head + payload)) + payload

# Two nodes; shard 0 on both, a replica of n-3 has left it, and its members have changed once.
node = lambda i: data(1, b"n-%d" % i) + data(2, b"s%d" % i) + data(3, b"h:%d" % i) + data(4, b"p:%d" % i)
replica = lambda i: data(1, b"r-%d" % i) + data(2, b"n-%d" % i)
shard = data(2, replica(1)) + data(2, replica(2)) + data(4, data(1, replica(3)) + num(2, 8)) + num(5, 1)
cmap = (data(1, b"c-1") + num(2, 300) + num(3, 2) + data(4, node(1) + num(5, 1)) + data(4, node(2))
        + data(5, shard) + data(6, num(1, 4096)) + num(8, 4))
here = os.path.dirname(os.path.abspath(__file__))
open(os.path.join(here, "clustermap.bin"), "wb").write(frame(cmap))
