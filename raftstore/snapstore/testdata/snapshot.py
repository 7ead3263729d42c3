#!/usr/bin/env python3
"""Writes a snapshot from docs/formats/snapshot-store.md by hand. Shares no code with the project."""
import json, struct

def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF

index, term, name, payload = 7, 3, "00000000000000000007-0000000003-0001", b"hello"
head = b"rowraftD" + struct.pack("<HH", 1, 0)
head += struct.pack("<I", crc32c(struct.pack("<QQ", index, term) + head))
chunk = struct.pack("<II", len(payload), crc32c(struct.pack("<QQQ", index, term, 0) + payload)) + payload
with open(name + "/data", "wb") as out:
    out.write(head + chunk)

body = json.dumps({"raft": {
    "Version": 1, "ID": name, "Index": index, "Term": term, "Peers": None,
    "Configuration": {"Servers": [{"Suffrage": 0, "ID": "r1", "Address": "n1"}]}, "ConfigurationIndex": 1, "Size": len(payload),
}, "chunks": 1, "owner": "replica r-shard-0 of group shard-0 on server n1 of cluster c-test"}, separators=(",", ":")).encode()
frame = b"rowraftM" + struct.pack("<HHI", 1, 0, len(body)) + body
with open(name + "/meta", "wb") as out:
    out.write(frame + struct.pack("<I", crc32c(frame)))
