"""Reads what our writer wrote and writes what our reader is to read, with the
packages that people use. python.py DIR, called by TestPythonReadsAndWrites.

DIR/cases.json lists tables: name, dim, rows. Of each, DIR/name.raw has the ids as
u64 and then the vectors as f32, and the files name.npy, name.safetensors and
name.parquet are to hold the same bits. bf16.safetensors is to hold name "bf16"'s
upper halves.
"""
import json
import os
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors
from safetensors.numpy import load_file, save_file

os.chdir(sys.argv[1])


def same(what, got, want):
    got = np.ascontiguousarray(got)
    if got.dtype != want.dtype or got.shape != want.shape or got.tobytes() != want.tobytes():
        sys.exit(f"{what}: {got.dtype} {got.shape} {got!r}, want {want.dtype} {want.shape} {want!r}")


def read_parquet(name):
    t = pq.read_table(name).combine_chunks()
    flat = t["embedding"].combine_chunks().flatten().to_numpy()
    return t["id"].to_numpy(), flat.reshape(len(t), -1) if len(t) else flat.reshape(0, 0)


for case in json.load(open("cases.json")):
    name, rows, dim = case["name"], case["rows"], case["dim"]
    raw = open(name + ".raw", "rb").read()
    ids = np.frombuffer(raw[: 8 * rows], "<u8")
    vectors = np.frombuffer(raw[8 * rows :], "<f4").reshape(rows, dim)

    if name == "bf16":
        tensors = dict(safetensors.deserialize(open("bf16.safetensors", "rb").read()))
        assert tensors["vectors"]["dtype"] == "BF16" and list(tensors["vectors"]["shape"]) == [rows, dim], tensors["vectors"]
        same("bf16 ids", np.frombuffer(bytes(tensors["ids"]["data"]), "<u8"), ids)
        same("bf16", np.frombuffer(bytes(tensors["vectors"]["data"]), "<u2"), (vectors.ravel().view("<u4") >> 16).astype("<u2"))
        continue

    t = load_file(name + ".safetensors")
    same(name + ".safetensors ids", t["ids"], ids)
    same(name + ".safetensors", t["vectors"], vectors)
    with safetensors.safe_open(name + ".safetensors", "np") as f:
        assert f.metadata()["rowraft.table"] == "user_emb", f.metadata()
    same(name + ".ids.npy", np.load(name + ".ids.npy"), ids)
    same(name + ".npy", np.load(name + ".npy", mmap_mode="r"), vectors)
    got, lists = read_parquet(name + ".parquet")
    same(name + ".parquet ids", got, ids)
    if rows:
        same(name + ".parquet", lists, vectors)
    assert pq.read_schema(name + ".parquet").metadata[b"rowraft.table"] == b"user_emb"

    # What they write, for our reader.
    out = "py_" + name
    np.save(out + ".npy", vectors)
    np.save(out + ".ids.npy", ids)
    save_file({"ids": ids, "vectors": vectors}, out + ".safetensors")
    if dim % 4 == 0:  # other types, with the same values where they fit
        np.save(out + "_f8.npy", vectors.astype("<f8"))
        np.save(out + "_f8.ids.npy", ids.view("<i8"))
    fixed = pa.FixedSizeListArray.from_arrays(vectors.ravel(), dim)
    pq.write_table(pa.table({"id": ids, "embedding": fixed}), out + ".parquet")
    many = pa.ListArray.from_arrays(np.arange(0, rows * dim + 1, dim, dtype=np.int32), vectors.ravel().astype("<f8"))
    for i, options in enumerate([{"compression": "zstd", "data_page_version": "2.0"}, {"compression": "gzip", "use_dictionary": False, "data_page_size": 100, "row_group_size": 7}]):
        pq.write_table(pa.table({"other": ["x"] * rows, "id": ids.view("<i8"), "embedding": many}), f"{out}_{i}.parquet", **options)
