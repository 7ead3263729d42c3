#!/usr/bin/env python3
"""Writes the golden files of docs/formats/metadata.md by hand: no protobuf library, own CRC."""
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

def frame(magic, payload):
    head = magic + struct.pack("<II", 1, len(payload))
    return head + struct.pack("<I", crc32c(head + payload)) + payload

here = os.path.dirname(os.path.abspath(__file__))
join = data(1, b"ctr") + data(2, b"worker-0") + num(3, 3)
open(os.path.join(here, "join_job.entry"), "wb").write(frame(b"RRME", data(6, join)))

node = data(1, b"n-1") + data(2, b"one") + data(3, b"h:1") + data(4, b"h:2") + num(5, 1)
cmap = data(1, b"c-1") + num(2, 2) + data(4, node) + num(8, 1)
job = data(1, b"ctr") + num(2, 3) + data(3, data(1, b"worker-0") + num(2, 2))
state = num(1, 300) + data(2, cmap) + num(3, 5) + data(4, job)
open(os.path.join(here, "state.snapshot"), "wb").write(frame(b"RRMS", state))
