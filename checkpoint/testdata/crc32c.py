#!/usr/bin/env python3
"""Bit-by-bit CRC-32C, sharing no code with the Go packages.

Reads a golden file, prints what each CRC of it must be: of a snapshot the
header's, then those of its chunks (docs/formats/snapshot.md); of a manifest or
sums file the only one (docs/formats/checkpoint.md).
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


raw = open(sys.argv[1], "rb").read()
if raw.startswith(b"ROWRAFT-CHECKPOINT"):
    line, body = raw.split(b"\n", 1)
    want = f"{crc32c(body):08x} {len(body)}"
    print("manifest", want, "ok" if line.decode().endswith(want) else "but the file has " + line.decode())
    sys.exit()

text = re.sub(r"#.*", "", open(sys.argv[1]).read())
b = bytes.fromhex("".join(text.split()))


def show(what, data, stands):
    want = struct.pack("<I", crc32c(data)).hex()
    print(what, want, "ok" if stands.hex() == want else f"but the file has {stands.hex()}")


if b.startswith(b"ROWRSUMS"):
    show("sums", b[:-4], b[-4:])
    sys.exit()

show("header", b[:60], b[60:64])
at = 64
while at < len(b):
    (length,) = struct.unpack_from("<Q", b, at + 8)
    end = at + 16 + length
    show(f"chunk of kind {b[at]} at {at}", b[at : at + 4] + b[at + 8 : end], b[at + 4 : at + 8])
    at = end
