#!/usr/bin/env python3
"""A row record and its hash, built from the layout in package rowstore's comment.

Needs the reference XXH3 (pip install xxhash). Prints record.hex: the record, then
its digest as two 64-bit halves, high first.
"""
import struct

import xxhash

record = struct.pack("<IIQQ6f", 0, 0, 0x0123456789ABCDEF, 5, 1, -2, 0.5, 4, 9, 16)
print(record.hex())
print(xxhash.xxh3_128(record[8:], seed=0).hexdigest())
