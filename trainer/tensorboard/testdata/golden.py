#!/usr/bin/env python3
"""Writes events.hex by hand from docs/formats/tensorboard.md: own CRC, own protobuf, no code of the project."""
import os, struct

def crc32c(b):
    c = 0xFFFFFFFF
    for x in b:
        c ^= x
        for _ in range(8):
            c = (c >> 1) ^ (0x82F63B78 if c & 1 else 0)
    return c ^ 0xFFFFFFFF

assert crc32c(b"123456789") == 0xE3069283

def masked(b):
    c = crc32c(b)
    return (((c >> 15) | (c << 17)) + 0xA282EAD8) & 0xFFFFFFFF

def record(event):
    n = struct.pack("<Q", len(event))
    return n + struct.pack("<I", masked(n)) + event + struct.pack("<I", masked(event))

def text(field, b):  # up to 127 bytes
    return bytes([field << 3 | 2, len(b)]) + b

time = b"\x09" + struct.pack("<d", 1700000000.5)
step = b"\x10\xac\x02"  # 300
body = record(time + text(3, b"brain.Event:2"))
body += record(time + step + text(7, b"\x08\x01"))
loss = text(1, b"loss") + b"\x15" + struct.pack("<f", 0.25)
auc = text(1, b"auc") + b"\x15" + struct.pack("<f", -1.5)
body += record(time + step + text(5, text(1, loss) + text(1, auc)))
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "events.hex"), "w") as f:
    for i in range(0, len(body), 24):
        f.write(body[i:i + 24].hex(" ") + "\n")
