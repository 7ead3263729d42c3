#!/usr/bin/env python3
"""Writes state.hex by hand from docs/formats/trainer-state.md: own CRC, no code of the project."""
import os, struct

def crc32c(b):
    c = 0xFFFFFFFF
    for x in b:
        c ^= x
        for _ in range(8):
            c = (c >> 1) ^ (0x82F63B78 if c & 1 else 0)
    return c ^ 0xFFFFFFFF

assert crc32c(b"123456789") == 0xE3069283

job, config = b"ctr", b'{"batch":512}'
head = b"ROWTRAIN" + struct.pack("<HHIII", 1, 0, 1, 3, 1)
head += struct.pack("<QQQQ", 1000, 511488, 1, 999)
head += struct.pack("<III", len(job), len(config), 2)
head += struct.pack("<I", crc32c(head))
assert len(head) == 72
position = struct.pack("<IIQQ", 1, 3, 2, 4096)
bias = struct.pack("<HHI", 1, 4, 1) + struct.pack("<Q", 2) + b"bias" + struct.pack("<ff", 0.5, -1.0)
scalar = struct.pack("<HHI", 3, 4, 0) + b"step" + struct.pack("<f", 7.0)
body = head + job + config + position + bias + scalar
body += struct.pack("<I", crc32c(body))
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "state.hex"), "w") as f:
    for i in range(0, len(body), 24):
        f.write(body[i:i + 24].hex(" ") + "\n")
