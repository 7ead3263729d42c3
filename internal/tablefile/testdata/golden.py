#!/usr/bin/env python3
"""Writes golden.npy, golden.ids.npy and golden.safetensors next to itself, byte by
byte from the pages of their formats (NumPy Enhancement Proposal 1; the README of
safetensors), with nothing but struct: not from our writer, and not from theirs.

The table has dim 3 and three rows:

    18446744073709551615  0.0    -0.0   1.0
    0                     -2.5   3.0e38 2^-149
    9223372036854775808   0.1    1/3    -1.0
"""
import os
import struct

here = os.path.dirname(os.path.abspath(__file__))
ids = struct.pack("<QQQ", 2**64 - 1, 0, 2**63)
vectors = struct.pack("<9f", 0.0, -0.0, 1.0, -2.5, 3.0e38, 2.0**-149, 0.1, 1 / 3, -1.0)


def npy(name, descr, shape, data):
    # magic, version 1.0, length of the header as u16; the header is ASCII, ends in
    # a newline and makes data begin at a multiple of 64: here at 128.
    text = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }" % (descr, shape)
    text += " " * (128 - 10 - 1 - len(text)) + "\n"
    write(name, b"\x93NUMPY" + bytes([1, 0]) + struct.pack("<H", len(text)) + text.encode("ascii") + data)


def safetensors(name, header, size, data):
    # length of the header as u64; JSON, padded by spaces; the tensors.
    write(name, struct.pack("<Q", size) + header.encode("ascii") + b" " * (size - len(header)) + data)


def write(name, content):
    with open(os.path.join(here, name), "wb") as f:
        f.write(content)


npy("golden.npy", "<f4", "(3, 3)", vectors)
npy("golden.ids.npy", "<u8", "(3,)", ids)
# 36 bytes of vectors, 4 of padding, so that the ids are aligned to 8, 24 of ids. The
# writer leaves room for the longest offsets, in steps of 512 bytes.
safetensors(
    "golden.safetensors",
    '{"__metadata__":{"rowraft.dim":"3","rowraft.initializer":"uniform -0.01 0.01","rowraft.kind":"sparse",'
    '"rowraft.seed":"18446744073709551615","rowraft.source":"by hand","rowraft.table":"user_emb",'
    '"rowraft.table_id":"18364758544493064720","rowraft.version":"1"},'
    '"ids":{"dtype":"U64","shape":[3],"data_offsets":[40,64]},'
    '"padding":{"dtype":"U8","shape":[4],"data_offsets":[36,40]},'
    '"vectors":{"dtype":"F32","shape":[3,3],"data_offsets":[0,36]}}',
    1024,
    vectors + bytes(4) + ids,
)
