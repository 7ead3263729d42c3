#!/usr/bin/env python3
"""Writes META from docs/formats/log-meta.md by hand. Shares no code with the project."""
import struct

def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF

def frame(body):
    head = b"rowraftL" + struct.pack("<HHI", 1, 0, len(body)) + body
    return head + struct.pack("<I", crc32c(head))

def key(k, v):
    return struct.pack("<H", len(k)) + k + struct.pack("<I", len(v)) + v

keys = struct.pack("<I", 3) + key(b"CurrentTerm", struct.pack("<Q", 7)) + key(b"LastVoteCand", b"replica-b") + key(b"LastVoteTerm", struct.pack("<Q", 6))
owner = b"".join(struct.pack("<B", len(n)) + n for n in (b"c-test", b"n1", b"shard-0", b"r-shard-0"))
older = struct.pack("<QQB", 8, 3, 0) + owner + struct.pack("<I", 0)
newer = struct.pack("<QQB", 9, 4, 0) + owner + keys
with open("META", "wb") as out:
    for body in (newer, newer, older, older):
        out.write(frame(body).ljust(4096, b"\0"))
