"""export: a directory that serves the model without rowraft."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import rowraft

torch = pytest.importorskip("torch")

import rowraft.torch as rt  # noqa: E402
from rowraft.torch import _embeddings, _export  # noqa: E402

# The user's file: the same class in training and in serving.
MODEL = """
import torch

class Model(torch.nn.Module):
    def __init__(self, bags, weighted, words):
        super().__init__()
        self.bags, self.weighted, self.words = bags, weighted, words
        self.register_buffer("flag", torch.tensor(True))  # one byte before wide numbers
        self.norm = torch.nn.BatchNorm1d(4)
        self.scale = torch.nn.Parameter(torch.randn(4).bfloat16())
        self.out = torch.nn.Linear(16, 1)

    def forward(self, features):
        pooled, weighted = self.bags(features), self.weighted(features)
        words = self.words(features)["b"]
        example = torch.repeat_interleave(torch.arange(len(words.lengths())), words.lengths())
        sums = torch.zeros(len(words.lengths()), 4).index_add(0, example, words.values())
        return self.out(torch.cat([pooled.values(), self.norm(weighted["a"]) + sums * self.scale.float()], 1))
"""
scope: dict = {}
exec(MODEL, scope)

# Serves the model where rowraft cannot be imported, and writes the scores.
SERVE = """
import sys
sys.modules["rowraft"] = None
import numpy as np, torch
sys.path[:0] = sys.argv[1:3]
from embeddings import Export, KeyedJaggedTensor
from model import Model
export = Export()
assert export.collections() == ["bags", "weighted", "words"]
model = Model(*map(export.collection, export.collections()))
export.load_dense(model)
data = np.load(sys.argv[3])
batch = KeyedJaggedTensor(["a", "b", "c"], *(torch.from_numpy(data[k]) for k in ("values", "weights", "lengths")))
with torch.no_grad():
    np.save(sys.argv[4], model.eval()(batch).numpy())
for p in model.bags.parameters():
    p.data.zero_()  # a copy of the file's memory
"""


def collections(client: rowraft.Client, name: str, init, **options):
    bags = [
        rt.EmbeddingBagConfig(name + "s.1", 4, ["a", "b"], pooling=rt.SUM, init=init, **options),
        rt.EmbeddingBagConfig(name + "m", 4, ["c"], pooling=rt.MEAN, init=init, **options),
    ]
    return (
        rt.EmbeddingBagCollection(client, bags, in_flight=0),
        rt.EmbeddingBagCollection(client, [rt.EmbeddingBagConfig(name + "w", 4, ["a"], init=init)], is_weighted=True),
        rt.EmbeddingCollection(client, [rt.EmbeddingConfig(name + "q", 4, ["b"], init=init, **options)]),
    )


def batch_of(rng: np.random.Generator, ids: int, batch: int = 16) -> rt.KeyedJaggedTensor:
    lengths = rng.integers(0, 5, 3 * batch)
    lengths[::7] = 0
    values = rng.integers(0, ids, lengths.sum())
    values[:1] = 2**63 - 1 - ids
    weights = rng.random(lengths.sum()).astype(np.float32)
    return rt.KeyedJaggedTensor(["a", "b", "c"], *(torch.from_numpy(x) for x in (values, weights, lengths)))


def trained(client: rowraft.Client, name: str, init=None, **options):
    torch.manual_seed(1)
    model = scope["Model"](*collections(client, name, init or rt.Uniform(-1, 1, seed=3), **options))
    rng = np.random.default_rng(1)
    for _ in range(5):
        model(batch_of(rng, 300)).pow(2).sum().backward()
    return model.eval()


def serve(directory: pathlib.Path, work: pathlib.Path, batch: rt.KeyedJaggedTensor) -> np.ndarray:
    (work / "model.py").write_text(MODEL)
    (work / "serve.py").write_text(SERVE)
    np.savez(
        work / "batch.npz", values=batch.values().numpy(), lengths=batch.lengths().numpy(),
        weights=batch.weights_or_none().numpy(),
    )  # fmt: skip
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, work / "serve.py", directory, work, work / "batch.npz", work / "scores.npy"]
    subprocess.run(command, check=True, env=env, cwd=work, timeout=120)
    return np.load(work / "scores.npy")


def test_the_scores_are_those_of_the_model(ps, name, tmp_path):
    """For ids with a row and for ids without, where rowraft cannot be imported."""
    model = trained(ps, name)
    seen = []
    rt.export(model, tmp_path / "out", progress=lambda *at: seen.append(at))
    assert {t for t, _, _ in seen} == {name + c for c in ("s.1", "m", "w", "q")} and all(n > 0 for _, n, _ in seen)
    assert sorted(os.listdir(tmp_path / "out")) == ["config.json", "embeddings.py", "model.safetensors"]
    assert os.listdir(tmp_path) == ["out"]
    batch = batch_of(np.random.default_rng(2), 600)
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    with torch.no_grad():
        want = model(batch).numpy()
    np.testing.assert_allclose(serve(tmp_path / "out", tmp_path, batch), want, rtol=0, atol=1e-6)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before


def test_the_tensors(ps, name, tmp_path):
    """Ids ascend, and the rows are those of the table."""
    model = trained(ps, name)
    rt.export(model, tmp_path / "out")
    tensors = _embeddings.read(tmp_path / "out" / "model.safetensors")
    for c in ("s.1", "m", "w", "q"):
        ids, weight = tensors[f"tables/{name}{c}/ids"], tensors[f"tables/{name}{c}/weight"]
        assert ids.dtype == torch.int64 and len(ids) > 50 and (ids[1:] > ids[:-1]).all()
        assert (ps.table(name + c).pull(ids) == weight.numpy()).all()
        assert len(ids) == sum(len(k) for k, _ in ps.table(name + c).scan())
    assert all(t.data_ptr() % t.element_size() == 0 for t in tensors.values())
    dense = {k: v for k, v in tensors.items() if not k.startswith("tables/")}
    state = {k: v for k, v in model.state_dict().items() if not k.endswith("_extra_state")}
    assert dense.keys() == state.keys() and all(torch.equal(dense[k], state[k]) for k in dense)
    assert dense["norm.num_batches_tracked"].shape == () and dense["scale"].dtype == torch.bfloat16


def test_safetensors_reads_it(ps, name, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch", reason="the package safetensors is not installed")
    rt.export(trained(ps, name), tmp_path / "out")
    theirs = safetensors.load_file(tmp_path / "out" / "model.safetensors")
    ours = _embeddings.read(tmp_path / "out" / "model.safetensors")
    assert theirs.keys() == ours.keys()
    assert all(theirs[k].dtype == ours[k].dtype and torch.equal(theirs[k], ours[k]) for k in ours)


@pytest.mark.parametrize(
    "init",
    [rt.Zeros(), rt.Uniform(-0.3, 0.1, seed=2**64 - 3), rt.Normal(0.5, 2.0, seed=9)],
    ids=lambda i: type(i).__name__,
)
@pytest.mark.parametrize("storage", ["float32", "bfloat16"])
def test_an_id_without_a_row_has_the_initial_weights_of_the_cluster(tmp_path, init, storage):
    ids = np.concatenate([np.arange(100), np.random.default_rng(1).integers(0, 2**63, 100)])
    with rowraft.local_tables() as local:
        emb = rt.EmbeddingCollection(local, [rt.EmbeddingConfig("t", 5, ["f"], init=init, storage=storage)])
        rt.export(emb, tmp_path / "out")
        served = _embeddings.Export(tmp_path / "out").collection()
        batch = rt.KeyedJaggedTensor(["f"], torch.from_numpy(ids), lengths=torch.tensor([len(ids)]))
        want = emb.eval()(batch)["f"].values()
        assert want.abs().sum() > 0 or isinstance(init, rt.Zeros)
        assert torch.equal(served(batch)["f"].values(), want)


def test_many_rows(tmp_path, monkeypatch):
    """Several chunks, in the order of ids; ids that no tensor has are left out with a warning."""
    monkeypatch.setattr(_export, "_CHUNK", 1000)
    with rowraft.local_tables(dtype="bfloat16") as local:
        emb = rt.EmbeddingBagCollection(local, [rt.EmbeddingBagConfig("t", 2, ["f"], init=rt.Normal())])
        keys = np.random.default_rng(1).permutation(5_500).astype(np.uint64) * np.uint64(2**62 // 5_500)
        weights = np.stack([keys, keys], 1).astype(np.float32)
        emb._open()[0].assign(keys, weights)
        emb._open()[0].assign(np.array([2**63, 2**64 - 1], np.uint64), weights[:2])
        seen = []
        with pytest.warns(UserWarning, match="2 rows of table 't' have ids"):
            rt.export(emb, tmp_path / "out", progress=lambda *at: seen.append(at))
        assert seen == [("t", n, 5_502) for n in (*range(1000, 5001, 1000), 5_502)]
        served = _embeddings.Export(tmp_path / "out").collection()
        ids = torch.from_numpy(np.concatenate([keys.astype(np.int64), [1, 2]]))
        batch = rt.KeyedJaggedTensor(["f"], ids, lengths=torch.ones_like(ids))
        assert torch.equal(served(batch)["f"], emb.eval()(batch)["f"])


def test_a_table_of_two_collections_is_written_once(tmp_path):
    with rowraft.local_tables() as local:
        parts = torch.nn.ModuleDict({k: rt.EmbeddingCollection(local, [rt.EmbeddingConfig("t", 2, [k])]) for k in "fg"})
        parts["f"]._open()[0].push([1], np.ones((1, 2), np.float32))
        rt.export(parts, tmp_path / "out")
        export = _embeddings.Export(tmp_path / "out")
        assert export.collections() == ["f", "g"] and not export.dense()
        batch = rt.KeyedJaggedTensor(["f", "g"], torch.tensor([1, 1]), lengths=torch.tensor([1, 1]))
        rows = [export.collection(k)(batch)[k].values() for k in "fg"]
        assert torch.equal(*rows) and (rows[0] == torch.from_numpy(local.table("t").pull([1]))).all()


def test_it_waits_for_pushes(ps, name, tmp_path):
    emb = rt.EmbeddingCollection(ps, [rt.EmbeddingConfig(name, 2, ["f"], init=rt.Zeros())])
    batch = rt.KeyedJaggedTensor(["f"], torch.tensor([1]), lengths=torch.tensor([1]))
    (emb(batch)["f"].values() * float("nan")).sum().backward()
    with pytest.raises(rowraft.InvalidArgumentError, match="must be finite"):
        rt.export(emb, tmp_path / "out")
    assert not os.listdir(tmp_path)


def test_a_failure_leaves_nothing(ps, name, tmp_path):
    model = trained(ps, name)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").touch()
    for path, error in ((tmp_path / "old", FileExistsError), (tmp_path / "no" / "out", FileNotFoundError)):
        with pytest.raises(error, match="path: "):
            rt.export(model, path)

    def interrupt(*at: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rt.export(model, tmp_path / "out", progress=interrupt)
    ps.drop_table(name + "q")
    with pytest.raises(rowraft.TableNotFoundError):
        rt.export(model, tmp_path / "out")
    assert os.listdir(tmp_path) == ["old"] and os.listdir(tmp_path / "old") == ["file"]


class Stateful(torch.nn.Module):
    def __init__(self, emb) -> None:
        super().__init__()
        self.emb = emb

    def get_extra_state(self):
        return {"step": 1}


def test_bad_models(tmp_path):
    with rowraft.local_tables() as a, rowraft.local_tables() as b:
        one = [rt.EmbeddingConfig("t", 2, ["f"])]
        for model, names in (
            (torch.nn.Linear(2, 2), "a Linear without a collection"),
            (
                torch.nn.ModuleList([rt.EmbeddingCollection(c, one) for c in (a, b)]),
                "table 't' is used with two clients",
            ),
            (Stateful(rt.EmbeddingCollection(a, one)), "'_extra_state' of its state is a dict"),
            (
                torch.nn.ModuleDict({"tables/x": torch.nn.Linear(1, 1), "e": rt.EmbeddingCollection(a, one)}),
                "has the name of a table's rows",
            ),
        ):
            with pytest.raises(rowraft.InvalidArgumentError, match=f"model: .*{names}"):
                rt.export(model, tmp_path / "out")
    assert not os.listdir(tmp_path)


def test_bad_input_of_the_served_model(tmp_path):
    with rowraft.local_tables() as local:
        emb = rt.EmbeddingBagCollection(local, [rt.EmbeddingBagConfig("t", 2, ["f"])], is_weighted=True)
        model = torch.nn.ModuleDict({"emb": emb, "out": torch.nn.Linear(2, 1)})
        rt.export(model, tmp_path / "out")
    export = _embeddings.Export(tmp_path / "out")
    served = export.collection()
    one = torch.tensor([1])
    for batch, error, names in (
        (rt.KeyedJaggedTensor(["g"], one, lengths=one, weights=one.float()), ValueError, "no feature 'f' of table 't'"),
        (rt.KeyedJaggedTensor(["f"], one, lengths=one), ValueError, "batch has no weights"),
        (
            rt.KeyedJaggedTensor(["f"], -one, lengths=one, weights=one.float()),
            ValueError,
            "id -1 of table 't' is negative",
        ),
        (rt.KeyedJaggedTensor(["f"], one.float(), lengths=one, weights=one.float()), TypeError, "values: dtype"),
        (rt.KeyedJaggedTensor(["f"], one, lengths=2 * one, weights=one.float()), ValueError, "lengths: they sum to"),
        (one, TypeError, "want a KeyedJaggedTensor"),
    ):
        with pytest.raises(error, match=names):
            served(batch)
    empty = rt.KeyedJaggedTensor(["f"], one[:0], lengths=torch.zeros(3, dtype=torch.int64), weights=one[:0].float())
    assert served(empty)["f"].tolist() == [[0, 0]] * 3
    with pytest.raises(ValueError, match="name: 'x': want one of"):
        export.collection("x")
    for other, names in (
        (torch.nn.ModuleDict({"emb": served}), "'out.weight'"),
        (
            torch.nn.ModuleDict({"emb": served, "out": torch.nn.Linear(2, 1), "more": torch.nn.Linear(1, 1)}),
            "more.weight",
        ),
    ):
        with pytest.raises(ValueError, match=names):
            export.load_dense(other)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    (tmp_path / "out" / "config.json").write_text(json.dumps({**config, "rowraft_export": 2}))
    with pytest.raises(ValueError, match="has version 2"):
        _embeddings.Export(tmp_path / "out")
