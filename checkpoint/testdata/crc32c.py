#!/usr/bin/env python3
"""Bit-by-bit CRC-32C, sharing no code with the Go packages.

Reads a golden file, prints what each CRC of it must be: the header's, then
those of its chunks (docs/formats/snapshot.md).
"""
import re
import struct
import sys


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


text = re.sub(r"#.*", "", open(sys.argv[1]).read())
b = bytes.fromhex("".join(text.split()))


def show(what, data, stands):
    want = struct.pack("<I", crc32c(data)).hex()
    print(what, want, "ok" if stands.hex() == want else f"but the file has {stands.hex()}")


show("header", b[:60], b[60:64])
at = 64
while at < len(b):
    (length,) = struct.unpack_from("<Q", b, at + 8)
    end = at + 16 + length
    show(f"chunk of kind {b[at]} at {at}", b[at : at + 4] + b[at + 8 : end], b[at + 4 : at + 8])
    at = end
