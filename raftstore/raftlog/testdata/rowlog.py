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

def names(*parts):
    return b"".join(struct.pack("<B", len(n)) + n for n in parts)

def tag(owner):
    return struct.unpack("<Q", hashlib.sha256(owner).digest()[:8])[0]

def pad(b):
    return b + b"\0" * (-len(b) % 8)

server = names(b"c-test", b"n1", b"", b"")
one = names(b"c-test", b"n1", b"shard-0", b"r-shard-0")
two = names(b"c-test", b"n1", b"shard-1", b"r-shard-1")

def header(number, batch, salt):
    b = b"rowraftE" + struct.pack("<HHI", 1, 0, 0) + struct.pack("<QQQI", number, batch, salt, len(server))
    return b + struct.pack("<I", crc32c(b + server)) + server

def seal(index, term, typ, data):
    first = struct.pack("<I", crc32c(data))
    return first + struct.pack("<I", crc32c(struct.pack("<QQBQ", index, term, typ, len(data)) + first))

def entry(index, term, appended, typ, data):
    head = struct.pack("<QQqBBHI", index, term, appended, typ, 0, 0, len(data)) + seal(index, term, typ, data)
    return head, pad(data)

# A section is (what the CRC covers, its bytes).
def section(kind, count, tag, seq, covered, body):
    head = struct.pack("<HHIQQII", kind, 0, count, tag, seq, len(body), 0)
    return head + covered, head + body

def entries(owner, seq, *es, kind=1):
    return section(kind, len(es), tag(owner), seq, b"".join(h for h, _ in es), b"".join(h + d for h, d in es))

def plain(kind, count, tag, seq, body):
    return section(kind, count, tag, seq, body, body)

def cut(owner, seq, first, last):
    return plain(2, 0, tag(owner), seq, struct.pack("<QQ", first, last))

def begin(owner, seq):
    return plain(4, 0, tag(owner), seq, pad(owner))

def end(owner, seq):
    return plain(5, 0, tag(owner), seq, b"")

def state(*groups):
    body = b""
    for owner, seq, first, last, damaged in sorted(groups, key=lambda g: tag(g[0])):
        body += struct.pack("<QQQQB", tag(owner), seq, first, last, damaged) + owner[len(names(b"c-test", b"n1")):]
    return plain(6, len(groups), 0, 0, pad(body))

def batch(salt, number, *sections):
    length = sum(len(b) for _, b in sections)
    fixed = struct.pack("<IQII", len(sections), number, length, 0)
    sum_ = crc32c(struct.pack("<Q", salt) + fixed + b"".join(c for c, _ in sections))
    return struct.pack("<I", sum_) + fixed + b"".join(b for _, b in sections)

def segment(number, first_batch, salt, *batches):
    h = header(number, first_batch, salt)
    b = h.ljust(4096, b"\0") + h.ljust(4096, b"\0") + b"".join(batches)
    with open(os.path.join("rowlog", "%016x.seg" % number), "wb") as out:
        out.write(b)

a, b = 0x0123456789ABCDEF, 0xFEDCBA9876543210
at = 1700000000000000001
thirteen = entry(13, 2, at, 0, b"thirteen")
segment(3, 7, a,
        batch(a, 7, state((one, 5, 10, 12, 0)), entries(one, 6, thirteen, entry(14, 2, 0, 1, b"")), begin(two, 1)),
        batch(a, 8, cut(one, 7, 13, 13), entries(two, 2, entry(1, 1, 0, 1, b""))),
        batch(a, 9, entries(one, 8, entry(14, 3, at, 0, b"fourteen, again"))))
segment(4, 10, b,
        batch(b, 10, state((one, 8, 13, 14, 0), (two, 2, 1, 1, 0)), entries(one, 9, thirteen, kind=3), end(two, 3)),
        batch(b, 11, entries(one, 10, entry(15, 3, at, 0, bytes(range(33))))))
