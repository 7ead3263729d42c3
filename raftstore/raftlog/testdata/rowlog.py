#!/usr/bin/env python3
"""Writes two segments from docs/formats/log.md by hand. Shares no code with the project."""
import hashlib, os, struct

def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF

owner = b"".join(struct.pack("<B", len(n)) + n for n in (b"c-test", b"n1", b"shard-0", b"r-shard-0"))
tag, = struct.unpack("<Q", hashlib.sha256(owner).digest()[:8])

def header(number, batch, salt, first, last):
    b = b"rowraftE" + struct.pack("<HHI", 1, 0, 0) + struct.pack("<QQQQQI", number, batch, salt, first, last, len(owner))
    return b + struct.pack("<I", crc32c(b + owner)) + owner

def seal(index, term, typ, data):
    first = struct.pack("<I", crc32c(data))
    return first + struct.pack("<I", crc32c(struct.pack("<QQBQ", index, term, typ, len(data)) + first))

def entry(index, term, appended, typ, data):
    head = struct.pack("<QQqBBHI", index, term, appended, typ, 0, 0, len(data)) + seal(index, term, typ, data)
    return head, data + b"\0" * (-len(data) % 8)

def batch(salt, kind, number, count, heads, body):
    fixed = struct.pack("<HHQIIQ", kind, 0, number, count, len(body), tag)
    return struct.pack("<I", crc32c(struct.pack("<Q", salt) + fixed + heads)) + fixed + body

def entries(salt, number, *es):
    return batch(salt, 1, number, len(es), b"".join(h for h, _ in es), b"".join(h + d for h, d in es))

def cut(salt, number, first, last):
    body = struct.pack("<QQ", first, last)
    return batch(salt, 2, number, 0, body, body)

def segment(number, first_batch, salt, first, last, *batches):
    h = header(number, first_batch, salt, first, last)
    b = h.ljust(4096, b"\0") + h.ljust(4096, b"\0") + b"".join(batches)
    with open(os.path.join("rowlog", "%016x.seg" % number), "wb") as out:
        out.write(b)

a, b = 0x0123456789ABCDEF, 0xFEDCBA9876543210
at = 1700000000000000001
segment(3, 7, a, 10, 12,
        entries(a, 7, entry(13, 2, at, 0, b"thirteen"), entry(14, 2, 0, 1, b"")),
        cut(a, 8, 13, 13),
        entries(a, 9, entry(14, 3, at, 0, b"fourteen, again")))
segment(4, 10, b, 13, 14,
        entries(b, 10, entry(15, 3, at, 0, bytes(range(33)))))
