#!/usr/bin/env python3
"""Writes state.hex, place.hex, step.hex and opaque.hex by hand from docs/formats/trainer-state.md: own CRC, no code of the project."""
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

# A place in a stream; no tensors.
head = b"ROWTRAIN" + struct.pack("<HHIII", 1, 2, 0, 1, 1)
head += struct.pack("<QQQQ", 7, 3500, 0, 7)
head += struct.pack("<III", len(job), len(config), 0)
head += struct.pack("<I", crc32c(head))
position = struct.pack("<IIQQ", 0, 1, 0, 0)
name = b"clicks-01.csv"
place = struct.pack("<QQIIII", 90000, 3500, 256, 0x01020304, len(name), 0) + name
body = head + job + config + position + place
body += struct.pack("<I", crc32c(body))
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "place.hex"), "w") as f:
    for i in range(0, len(body), 24):
        f.write(body[i:i + 24].hex(" ") + "\n")

# Steps of the job, and no place; one position, no tensors.
head = b"ROWTRAIN" + struct.pack("<HHIII", 1, 4, 1, 2, 1)
head += struct.pack("<QQQQ", 41, 20992, 0, 40)
head += struct.pack("<III", len(job), len(config), 0)
head += struct.pack("<I", crc32c(head))
body = head + job + config + struct.pack("<IIQQ", 1, 2, 0, 20992) + struct.pack("<Q", 43)
body += struct.pack("<I", crc32c(body))
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "step.hex"), "w") as f:
    for i in range(0, len(body), 24):
        f.write(body[i:i + 24].hex(" ") + "\n")

# Opaque state of another program, behind the steps of the job; no positions, no tensors.
config = b'{"mode":"sync"}'
head = b"ROWTRAIN" + struct.pack("<HHIII", 1, 4 | 8, 0, 1, 0)
head += struct.pack("<QQQQ", 12, 0, 0, 12)
head += struct.pack("<III", len(job), len(config), 0)
head += struct.pack("<I", crc32c(head))
opaque = b"\x80\x02}q\x00."
body = head + job + config + struct.pack("<Q", 15) + struct.pack("<Q", len(opaque)) + opaque
body += struct.pack("<I", crc32c(body))
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "opaque.hex"), "w") as f:
    for i in range(0, len(body), 24):
        f.write(body[i:i + 24].hex(" ") + "\n")
