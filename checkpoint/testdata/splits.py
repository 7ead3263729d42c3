#!/usr/bin/env python3
"""Writes splits.hex by hand from docs/formats/job-splits.md: own CRC, no code of the project."""
import os, struct

def crc32c(b):
    c = 0xFFFFFFFF
    for x in b:
        c ^= x
        for _ in range(8):
            c = (c >> 1) ^ (0x82F63B78 if c & 1 else 0)
    return c ^ 0xFFFFFFFF

assert crc32c(b"123456789") == 0xE3069283

name = b"ctr"
# 1000 examples in parts of 96: 11 parts, the last one of 40; 3 epochs. The next is part 2 of epoch 1.
body = b"ROWPARTS" + struct.pack("<HHI", 1, 0, 2)
body += struct.pack("<QQQQQQQ", 1000, 96, 3, 1, 2, 32, 64)
body += struct.pack("<II", len(name), 0) + name
body += struct.pack("<QQQ", 0, 10, 40)  # the last part of epoch 0, read to its end and not yet ended
body += struct.pack("<QQQ", 1, 1, 64)
body += struct.pack("<I", crc32c(body))
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "splits.hex"), "w") as f:
    for i in range(0, len(body), 24):
        f.write(body[i:i + 24].hex(" ") + "\n")
