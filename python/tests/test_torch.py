"""rowraft.torch against torch.nn on the same numbers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import rowraft

torch = pytest.importorskip("torch")

import rowraft.torch as rt  # noqa: E402
from rowraft.torch import _modules  # noqa: E402
from rowraft.torch._jagged import positions  # noqa: E402


def jagged(rng: np.random.Generator, keys: list[str], batch: int, ids: int, most: int = 4, all_ids: bool = False):
    """A random batch; some bags are empty. all_ids: each id comes at least once, in the first feature."""
    lengths = rng.integers(0, most + 1, len(keys) * batch)
    if all_ids:
        lengths[0] += ids
    values = rng.integers(0, ids, lengths.sum())
    if all_ids:
        values[:ids] = np.arange(ids)
    return rt.KeyedJaggedTensor(keys, torch.from_numpy(values), lengths=torch.from_numpy(lengths))


@pytest.mark.parametrize("pooling", [rt.SUM, rt.MEAN, rt.NONE])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradcheck(pooling, weighted):
    rng = np.random.default_rng(1)
    lengths = torch.tensor([2, 0, 3, 1, 0])
    indices = torch.from_numpy(rng.integers(0, 4, 6))
    rows = torch.from_numpy(rng.normal(size=(4, 3))).requires_grad_()
    weights = torch.from_numpy(rng.normal(size=6)).requires_grad_() if weighted else None
    if weighted and pooling is not rt.SUM:
        with pytest.raises(rowraft.InvalidArgumentError, match="weights"):
            rt.pool(rows, indices, lengths, pooling, weights)
        return
    assert torch.autograd.gradcheck(lambda r, w: rt.pool(r, indices, lengths, pooling, w), (rows, weights))


@pytest.mark.parametrize("pooling", [rt.SUM, rt.MEAN])
def test_a_feature_without_ids(pooling):
    """It pools to 0, also where another feature has rows of the table, and gives them no gradient."""
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    out = rt.pool(rows, torch.empty(0, dtype=torch.int64), torch.zeros(3, dtype=torch.int64), pooling)
    out.sum().backward()
    assert out.shape == (3, 2) and (out == 0).all() and (rows.grad == 0).all()


def test_an_empty_batch(ps, name):
    emb = rt.EmbeddingBagCollection(ps, [rt.EmbeddingBagConfig(name, 3, ["f"])])
    out = emb(rt.KeyedJaggedTensor(["f"], torch.empty(0, dtype=torch.int64), lengths=torch.zeros(4, dtype=torch.int64)))
    assert out["f"].shape == (4, 3) and (out["f"] == 0).all()


OPTIMIZERS = {
    "sgd": (rt.SGD(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "adagrad": (
        rt.Adagrad(lr=0.1, initial_accumulator_value=0.1, eps=1e-8),
        lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1, eps=1e-8),
    ),
    # A large eps: with a small one, Adam makes steps of equal size of gradients that differ by rounding only.
    # SparseAdam scales eps in another way.
    "adam": (rt.Adam(lr=0.01, eps=1e-3), lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-3)),
}


@pytest.mark.parametrize("pooling", [rt.SUM, rt.MEAN])
@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_like_embedding_bag(ps, name, rule, pooling):
    """Weights after 20 random jagged batches: two features on one table and one on another."""
    ids, dim = 50, 4
    ours, theirs = OPTIMIZERS[rule]
    rng = np.random.default_rng(7)
    torch.manual_seed(7)
    configs = [
        rt.EmbeddingBagConfig(name + "a", dim, ["x", "y"], pooling=pooling, optimizer=ours, init=rt.Zeros()),
        rt.EmbeddingBagConfig(name + "b", dim, ["z"], pooling=pooling, optimizer=ours, init=rt.Zeros()),
    ]
    emb = rt.EmbeddingBagCollection(ps, configs, in_flight=0)
    bags, start = {}, {}
    for c in configs:
        start[c.name] = rng.normal(size=(ids, dim)).astype(np.float32)
        bags[c.name] = torch.nn.EmbeddingBag.from_pretrained(
            torch.from_numpy(start[c.name].copy()), freeze=False, mode=pooling.value, sparse=rule != "adam"
        )
    for c, t in zip(configs, emb._open()):
        t.assign(np.arange(ids), start[c.name])
    optimizer = theirs([p for b in bags.values() for p in b.parameters()])
    dense = torch.nn.Linear(3 * dim, 1)
    for _ in range(20):
        # PyTorch counts the steps of the optimizer, the servers those of a row: equal if each batch has all rows.
        batch = jagged(rng, ["x", "y", "z"], 16, ids, all_ids=rule == "adam")
        z = jagged(rng, ["z"], 16, ids, all_ids=rule == "adam")
        lengths = torch.cat([batch.lengths()[:32], z.lengths()])
        values = torch.cat([batch.values()[: int(lengths[:32].sum())], z.values()])
        batch = rt.KeyedJaggedTensor(["x", "y", "z"], values, lengths=lengths)
        got = emb(batch)
        at = positions(batch)
        want = []
        for f, c in (("x", configs[0]), ("y", configs[0]), ("z", configs[1])):
            low, high, n = at[f]
            want.append(bags[c.name](values[low:high], torch.nn.functional.pad(n.cumsum(0), (1, 0))[:-1]))
            torch.testing.assert_close(got[f], want[-1], rtol=1e-5, atol=1e-5)
        target = torch.from_numpy(rng.normal(size=(16, 1)).astype(np.float32))
        ((dense(got.values()) - target) ** 2).mean().backward()
        optimizer.zero_grad()
        ((dense(torch.cat(want, 1)) - target) ** 2).mean().backward()
        optimizer.step()
    for c, t in zip(configs, emb._open()):
        rows = t.pull(np.arange(ids))
        assert not np.allclose(rows, start[c.name], atol=1e-3)
        np.testing.assert_allclose(rows, bags[c.name].weight.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_weighted(ps, name):
    emb = rt.EmbeddingBagCollection(
        ps, [rt.EmbeddingBagConfig(name, 2, ["f"], optimizer=rt.SGD(lr=1.0), init=rt.Zeros())], is_weighted=True
    )
    batch = rt.KeyedJaggedTensor(
        ["f"],
        torch.tensor([1, 2, 1]),
        lengths=torch.tensor([2, 1]),
        weights=torch.tensor([0.5, 2.0, 3.0], requires_grad=True),
    )
    emb(batch)["f"].sum().backward()
    emb.flush()
    assert ps.table(name).pull([1, 2]).tolist() == [[-3.5, -3.5], [-2, -2]]


def test_sequences(ps, name):
    emb = rt.EmbeddingCollection(
        ps, [rt.EmbeddingConfig(name, 2, ["f", "g"], optimizer=rt.SGD(lr=1.0), init=rt.Zeros())]
    )
    out = emb(rt.KeyedJaggedTensor(["f", "g"], torch.tensor([5, 5, 6, 7]), lengths=torch.tensor([2, 1, 0, 1])))
    assert out["f"].values().shape == (3, 2) and out["g"].lengths().tolist() == [0, 1]
    (out["f"].values().sum() + 2 * out["g"].values().sum()).backward()
    emb.flush()
    assert ps.table(name).pull([5, 6, 7])[:, 0].tolist() == [-2, -1, -2]


def test_what_is_pushed(ps, name):
    """Once for each backward in training; nothing in eval mode or without grad."""
    emb = rt.EmbeddingBagCollection(
        ps, [rt.EmbeddingBagConfig(name, 2, ["f"], optimizer=rt.SGD(lr=1.0), init=rt.Zeros())]
    )
    batch = rt.KeyedJaggedTensor(["f"], torch.tensor([1, 1, 2]), lengths=torch.tensor([1, 2]))

    def row() -> float:
        emb.flush()
        return float(ps.table(name).pull([1])[0, 0])

    out = emb(batch)["f"]
    assert row() == 0
    out.sum().backward(retain_graph=True)
    assert row() == -2
    out.sum().backward()
    assert row() == -4
    with torch.no_grad():
        assert not emb(batch)["f"].requires_grad
    emb.eval()
    assert not emb(batch)["f"].requires_grad
    assert row() == -4
    assert not list(emb.parameters()) and list(emb.state_dict()) == ["_extra_state"]  # tests/test_state.py


@pytest.mark.parametrize("in_flight", [0, 4])
def test_one_push_for_each_backward(ps, name, in_flight, monkeypatch):
    """All tables that have gradients are in it."""
    emb = rt.EmbeddingBagCollection(
        ps,
        [rt.EmbeddingBagConfig(name + f, 2, [f], optimizer=rt.SGD(lr=1.0), init=rt.Zeros()) for f in "abc"],
        in_flight=in_flight,
    )
    pushes = []
    call = "push_many_async" if in_flight else "push_many"
    push = getattr(ps, call)
    monkeypatch.setattr(ps, call, lambda parts: pushes.append([t.name for t, _, _ in parts]) or push(parts))
    out = emb(rt.KeyedJaggedTensor(["a", "b", "c"], torch.tensor([1, 2, 2]), lengths=torch.tensor([1, 0, 2])))
    out.values().sum().backward(retain_graph=True)
    assert pushes == [[name + "a", name + "c"]]  # b has no ids
    (2 * out["c"].sum()).backward()
    assert pushes[1:] == [[name + "c"]]
    emb.flush()
    assert ps.table(name + "a").pull([1]).tolist() == [[-1, -1]]
    assert ps.table(name + "c").pull([2]).tolist() == [[-6, -6]]


def test_prefetch(ps, name):
    emb = rt.EmbeddingBagCollection(
        ps, [rt.EmbeddingBagConfig(name, 2, ["f"], optimizer=rt.SGD(lr=1.0), init=rt.Zeros())]
    )
    batches = [
        (torch.tensor([i]), rt.KeyedJaggedTensor(["f"], torch.tensor([i]), lengths=torch.tensor([1])))
        for i in range(20)
    ]
    seen = []
    for dense, features in rt.prefetch(batches, emb, depth=3):
        assert isinstance(features, rt.Prepared)
        emb(features)["f"].sum().backward()
        seen.append(int(dense))
        with pytest.raises(rowraft.InvalidArgumentError, match="before"):
            emb(features)
    emb.flush()
    assert seen == list(range(20)) and emb.waited > 0
    assert (ps.table(name).pull(range(20)) == -1).all()


class Example(NamedTuple):
    label: int
    features: rt.Prepared


def test_prefetch_of_named_tuples(ps, name):
    emb = rt.EmbeddingBagCollection(ps, [rt.EmbeddingBagConfig(name, 2, ["f"], init=rt.Zeros())])
    batch = Example(1, rt.KeyedJaggedTensor(["f"], torch.tensor([1]), lengths=torch.tensor([1])))
    (got,) = rt.prefetch([batch], emb)
    assert isinstance(got, Example) and got.label == 1 and isinstance(got.features, rt.Prepared)


def test_a_batch_after_an_error(ps, name):
    """The error of an earlier push does not use up the prepared batch that it stops."""
    emb = rt.EmbeddingBagCollection(
        ps, [rt.EmbeddingBagConfig(name, 2, ["f"], optimizer=rt.SGD(lr=1.0), init=rt.Zeros())]
    )
    batch = rt.KeyedJaggedTensor(["f"], torch.tensor([1]), lengths=torch.tensor([1]))
    prepared = emb.prepare(batch)
    (emb(batch)["f"].sum() * float("nan")).backward()
    while not emb._pushes[0].done():
        pass
    with pytest.raises(rowraft.InvalidArgumentError, match="finite"):
        emb(prepared)
    emb(prepared)["f"].sum().backward()
    emb.flush()
    assert (ps.table(name).pull([1]) == -1).all()


def test_an_error_does_not_stop_later_pushes(ps, name):
    """The tables of a backward are pushed as a whole or not at all; another backward does not raise its error."""
    configs = [
        rt.EmbeddingBagConfig(name + f, 2, [f], optimizer=rt.SGD(lr=1.0), init=rt.Zeros()) for f in ("good", "bad")
    ]
    emb = rt.EmbeddingBagCollection(ps, configs, in_flight=1)
    batches = [
        rt.KeyedJaggedTensor(["good", "bad"], torch.tensor([i, i]), lengths=torch.tensor([1, 1])) for i in (1, 2)
    ]
    first, second = emb(batches[0]), emb(batches[1])
    (first["good"].sum() + first["bad"].sum() * float("nan")).backward()
    (second["good"].sum() + second["bad"].sum()).backward()
    with pytest.raises(rowraft.InvalidArgumentError, match="finite"):
        emb.flush()
    emb.flush()
    for t in configs:
        assert ps.table(t.name).pull([1, 2]).tolist() == [[0, 0], [-1, -1]]


def test_kills_under_training(cluster, name):
    """Each gradient takes effect once, while a leader is killed and training goes on."""
    with cluster.connect() as ps:
        emb = rt.EmbeddingBagCollection(
            ps, [rt.EmbeddingBagConfig(name, 4, ["f"], optimizer=rt.SGD(lr=1.0), init=rt.Zeros())]
        )
        rng = np.random.default_rng(3)
        count = np.zeros(100)
        killed = None
        for step in range(60):
            batch = jagged(rng, ["f"], 32, 100)
            np.add.at(count, batch.values().numpy(), 1)
            emb(batch)["f"].sum().backward()
            if step == 20:
                killed = next(s.name for s in ps.servers() if s.leads)
                cluster.kill(killed)
            if step == 50:
                cluster.restart(killed)
        emb.flush()
        assert (ps.table(name).pull(np.arange(100)) == -count[:, None]).all()


@pytest.mark.parametrize(
    ("features", "error", "names"),
    [
        (
            lambda: rt.KeyedJaggedTensor(["f"], torch.tensor([-1]), lengths=torch.tensor([1])),
            ValueError,
            "id -1 of table",
        ),
        (
            lambda: rt.KeyedJaggedTensor(["g"], torch.tensor([1]), lengths=torch.tensor([1])),
            ValueError,
            "no feature 'f'",
        ),
        (
            lambda: rt.KeyedJaggedTensor(["f"], torch.tensor([1.0]), lengths=torch.tensor([1])),
            TypeError,
            "values: dtype",
        ),
        (
            lambda: rt.KeyedJaggedTensor(["f"], torch.tensor([1]), lengths=torch.tensor([2])),
            ValueError,
            "lengths: they sum to 2",
        ),
        (lambda: rt.KeyedJaggedTensor(["f"], torch.tensor([1]), lengths=torch.tensor([2, -1])), ValueError, "lengths"),
        (lambda: torch.tensor([1]), TypeError, "want a KeyedJaggedTensor, got Tensor"),
    ],
)
def test_bad_batches(ps, name, features, error, names):
    emb = rt.EmbeddingBagCollection(ps, [rt.EmbeddingBagConfig(name, 2, ["f"])])
    with pytest.raises(error, match=names):
        emb(features())


def test_more_bad_input(ps, name):
    emb = rt.EmbeddingBagCollection(ps, [rt.EmbeddingBagConfig(name, 2, ["f"], init=rt.Zeros())], in_flight=0)
    batch = rt.KeyedJaggedTensor(["f"], torch.tensor([1]), lengths=torch.tensor([1]))
    with pytest.raises(rowraft.InvalidArgumentError, match="must be finite"):
        (emb(batch)["f"].sum() * float("nan")).backward()
    later = rt.EmbeddingBagCollection(ps, [rt.EmbeddingBagConfig(name, 2, ["f"], init=rt.Zeros())])
    (later(batch)["f"].sum() * float("nan")).backward()
    with pytest.raises(rowraft.InvalidArgumentError, match="must be finite"):
        later.flush()
    assert (ps.table(name).pull([1]) == 0).all()
    with pytest.raises(rowraft.TableExistsError):
        rt.EmbeddingBagCollection(ps, [rt.EmbeddingBagConfig(name, 3, ["f"])])(batch)
    with pytest.raises(rowraft.InvalidArgumentError, match="feature 'f' appears twice"):
        rt.EmbeddingBagCollection(ps, [rt.EmbeddingBagConfig("a", 3, ["f"]), rt.EmbeddingBagConfig("b", 3, ["f"])])
    with pytest.raises(rowraft.InvalidArgumentError, match="pooling NONE"):
        rt.EmbeddingBagCollection(ps, [rt.EmbeddingBagConfig("a", 3, ["f"], pooling=rt.NONE)])


class Ids(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int):
        return torch.tensor(i)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_data_loader(ps, name, context):
    """Workers load the data; only the parent talks to rowraft."""
    emb = rt.EmbeddingBagCollection(
        ps, [rt.EmbeddingBagConfig(name, 2, ["f"], optimizer=rt.SGD(lr=1.0), init=rt.Zeros())]
    )
    ps.tables()
    loader = torch.utils.data.DataLoader(Ids(), batch_size=4, num_workers=2, multiprocessing_context=context)
    for ids in loader:
        emb(rt.KeyedJaggedTensor(["f"], ids, lengths=torch.ones_like(ids)))["f"].sum().backward()
    emb.flush()
    assert (ps.table(name).pull(range(12)) == -1).all()


def test_the_module_has_a_device(ps, name):
    """The device "meta" stands for a GPU: the features are on the CPU, the vectors where the module is."""
    emb = rt.EmbeddingBagCollection(ps, [rt.EmbeddingBagConfig(name, 2, ["f"])])
    sequences = rt.EmbeddingCollection(ps, [rt.EmbeddingConfig(name, 2, ["f"])])
    batch = rt.KeyedJaggedTensor(["f"], torch.tensor([1, 2, 3]), lengths=torch.tensor([2, 1]))
    model = torch.nn.ModuleList([emb, sequences])
    assert emb(batch)["f"].device.type == "cpu"
    model.half()
    assert emb(batch)["f"].device.type == "cpu" and emb(batch)["f"].dtype == torch.float32
    model.to("meta")
    assert emb(batch)["f"].device.type == "meta" and emb(batch)["f"].shape == (2, 2)
    assert sequences(batch)["f"].values().device.type == sequences(batch)["f"].lengths().device.type == "meta"


def test_copies_to_a_gpu_have_a_stream(monkeypatch):
    """The order of the calls of _move, with a CUDA that only notes them."""
    calls = []

    class Stream:
        def __init__(self, name):
            self.name = name

        def wait_stream(self, other):
            calls.append(f"{self.name} waits for {other.name}")

        def __enter__(self):
            calls.append(f"in {self.name}")

        def __exit__(self, *_):
            calls.append(f"out of {self.name}")

    class Rows:
        def to(self, device, non_blocking):
            assert device.type == "cuda" and non_blocking
            calls.append("copy")
            return self

        def record_stream(self, stream):
            calls.append(f"memory used by {stream.name}")

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("compute"))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("copies"))
    monkeypatch.setattr(torch.cuda, "stream", lambda s: s)
    _modules._side_stream.cache_clear()
    _modules._move([Rows(), Rows()], torch.device("cuda", 0))
    _modules._side_stream.cache_clear()
    assert calls == [
        "in copies",
        "copy",
        "copy",
        "out of copies",
        "compute waits for copies",
        *["memory used by compute"] * 2,
    ]


def test_ways_to_make_a_batch():
    """Arguments have the places that they have in TorchRec."""
    values, weights = torch.tensor([5, 6, 7]), torch.tensor([0.5, 1.0, 2.0])
    lengths, offsets = torch.tensor([2, 0, 1]), torch.tensor([0, 2, 2, 3])
    for batch in (
        rt.KeyedJaggedTensor(["f"], values, weights, lengths),
        rt.KeyedJaggedTensor(["f"], values, weights, offsets=offsets),
        rt.KeyedJaggedTensor.from_lengths_sync(["f"], values, lengths, weights),
        rt.KeyedJaggedTensor.from_offsets_sync(["f"], values, offsets, weights),
    ):
        assert batch.lengths().tolist() == [2, 0, 1] and batch.weights_or_none() is weights
    with pytest.raises(ValueError, match="lengths or offsets"):
        rt.KeyedJaggedTensor(["f"], values)


def test_torchrec(ps, name):
    """TorchRec's own class is accepted where it is installed."""
    sparse = pytest.importorskip("torchrec.sparse.jagged_tensor")
    emb = rt.EmbeddingBagCollection(ps, [rt.EmbeddingBagConfig(name, 2, ["f"], init=rt.Normal(1, 1))])
    values, lengths = torch.tensor([1, 2, 3]), torch.tensor([2, 1])
    theirs = emb(sparse.KeyedJaggedTensor(["f"], values, lengths=lengths))
    ours = emb(rt.KeyedJaggedTensor(["f"], values, lengths=lengths))
    assert torch.equal(theirs["f"], ours["f"]) and theirs.values().shape == (2, 2)
