"""Tables in this process, and the promise that a cluster gives the same bits."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import rowraft

OPTIMIZERS = rowraft._schema.OPTIMIZERS


def fill(shape: tuple[int, ...], value: float = 1.0) -> np.ndarray:
    return np.full(shape, value, np.float32)


def rows_of(table: rowraft.Table) -> tuple[np.ndarray, np.ndarray]:
    """All rows, by ascending key, as bits."""
    parts = list(table.scan(batch_rows=1000))
    keys = np.concatenate([k for k, _ in parts]) if parts else np.empty(0, np.uint64)
    rows = np.concatenate([w for _, w in parts]) if parts else np.empty((0, table.dim), np.float32)
    order = np.argsort(keys)
    return keys[order], rows[order].view(np.uint32)


def same_rows(a: rowraft.Table, b: rowraft.Table) -> int:
    """Check that two tables have the same bits, and return the number of rows."""
    (ka, wa), (kb, wb) = rows_of(a), rows_of(b)
    assert (ka == kb).all() and (wa == wb).all()
    return len(ka)


@pytest.fixture
def local():
    with rowraft.local_tables() as client:
        yield client


def test_tables(local):
    with pytest.raises(rowraft.TableNotFoundError):
        local.table("user")
    t = local.create_table("user", 4, optimizer=rowraft.Adam(lr=0.5), init=rowraft.Normal(1, 2, seed=3))
    assert local.table("user").describe() == t.describe() and t.describe().optimizer == "adam"
    for again in (lambda: local.create_table("user", 4), lambda: local.create_table("user", 8, exist_ok=True)):
        with pytest.raises(rowraft.TableExistsError):
            again()
    t.push([1, 2], fill((2, 4)))
    local.flush()
    assert [(i.name, i.rows) for i in local.tables()] == [("user", 2)]
    local.drop_table("user")
    again = local.create_table("user", 4, optimizer=rowraft.Adam(lr=0.5), init=rowraft.Normal(1, 2, seed=3))
    with pytest.raises(rowraft.TableNotFoundError):  # it is another table of the name
        t.pull([1])
    assert not list(again.scan())


def test_like_a_cluster_call_by_call(ps, local, name):
    """Repeated and unsorted keys, learning rates, assigns and deletes have the same effect."""
    on = [c.create_table(name, 3, optimizer=rowraft.Adagrad(lr=0.5)) for c in (ps, local)]
    rng = np.random.default_rng(1)
    large = 2**64 - 5
    for step in range(20):
        keys = rng.integers(0, 40, (4, 6)).astype(np.uint64) + np.uint64(large * (step % 2))
        grads = rng.normal(size=(4, 6, 3)).astype(np.float32)
        grads[0] *= 1e8  # sums depend on their order
        out = [t.pull(keys) for t in on]
        assert (out[0].view(np.uint32) == out[1].view(np.uint32)).all()
        for t in on:
            t.push(keys, grads, lr=0.25 if step % 3 == 0 else None)
            t.assign(keys[1], grads[1, :, :])
            t.delete(keys[2, [0, 1, 0]])
            t.push_async(keys[:2], grads[:2]).result()
        present = [t.pull_present(keys) for t in on]
        assert (present[0][1] == present[1][1]).all() and (present[0][0] == present[1][0]).all()
        assert (on[0].pull(keys, mode="linearizable") == on[1].pull(keys, mode="linearizable")).all()
    assert same_rows(*on) > 40


def test_many_rows_and_tables(local):
    a, b = (local.create_table(n, 2, optimizer=rowraft.Add(), init=rowraft.Zeros()) for n in "ab")
    keys = np.arange(10_000, dtype=np.uint64)[::-1]
    grads = np.stack([keys, keys], 1).astype(np.float32)
    local.push_many_async([(a, keys, grads), (b, keys[:5], grads[:5])]).result()
    assert [len(k) for k, _ in a.scan(batch_rows=4000)] == [4000, 4000, 2000]
    x, y = local.pull_many_async([(a, keys), (b, keys)]).result()
    assert (x == grads).all() and (y[:5] == grads[:5]).all() and (y[5:] == 0).all()
    a.delete(keys[:9_000])
    a.push([9_999, 20_000], fill((2, 2)))
    assert len(rows_of(a)[0]) == 1_002 and (a.pull([9_999]) == 1).all()


def test_bfloat16(cluster, name):
    """Rounded on the wire and in the table, as on a cluster."""
    grads = np.random.default_rng(2).normal(size=(50, 4)).astype(np.float32)
    with cluster.connect(dtype="bfloat16") as ps, rowraft.local_tables(dtype="bfloat16") as local:
        for storage in ("float32", "bfloat16"):
            on = [c.create_table(name + storage, 4, storage=storage) for c in (ps, local)]
            for t in on:
                t.push(np.arange(50) % 20, grads)
            assert same_rows(*on) == 20
            assert (on[0].pull(np.arange(40)) == on[1].pull(np.arange(40))).all()


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda c, t: c.checkpoint("/nowhere"), rowraft.PreconditionError, "checkpoint: tables in this process"),
        (lambda c, t: c.servers(), rowraft.PreconditionError, "servers: tables in this process"),
        (lambda c, t: c.create_table("b", 2, admit=rowraft.Count(3)), ValueError, "no admission"),
        (lambda c, t: c.create_table("b", 2, expire="1h"), ValueError, "no admission, expiry"),
        (lambda c, t: c.create_table("b", 2, capacity=4096), ValueError, "expiry or capacity"),
        (lambda c, t: c.create_table("b", 0), ValueError, "dim 0"),
        (lambda c, t: c.push_many([(t, [1], fill((1, 2)))] * 2), ValueError, "merge them"),
        (lambda c, t: t.push([1, 1], fill((2, 2), 3e38)), ValueError, "must be finite"),
        (lambda c, t: t.assign([1], fill((1, 2), np.nan)), ValueError, "table a: key 1, dimension 0 is NaN"),
        (lambda c, t: t.pull([1], mode="psychic"), ValueError, "mode"),
        (lambda c, t: t.pull([-1]), ValueError, "keys: -1 is negative"),
        (lambda c, t: pickle.dumps(c), TypeError, "cannot be pickled"),
        (lambda c, t: rowraft.local_tables("int8").tables(), ValueError, "dtype"),
    ],
)
def test_bad_input(local, call, error, names):
    t = local.create_table("a", 2, optimizer=rowraft.Add(), init=rowraft.Zeros())
    t.push([1], fill((1, 2)))
    with pytest.raises(error, match=names):
        call(local, t)
    assert (t.pull([1]) == 1).all() and [i.name for i in local.tables()] == ["a"]


def test_close():
    local = rowraft.local_tables()
    t = local.create_table("a", 2)
    t.push([1, 2], fill((2, 2)))
    scan = t.scan(batch_rows=1)
    next(scan)
    local.close()
    local.close()
    with pytest.raises(rowraft.ClosedError):
        next(scan)
    for call in (lambda: t.pull([1]), lambda: t.push([1], fill((1, 2))), local.tables, local.flush):
        with pytest.raises(rowraft.ClosedError):
            call()


# The modules, bit for bit.

torch = pytest.importorskip("torch")

import rowraft.torch as rt  # noqa: E402


class Model(torch.nn.Module):
    """Sum and mean pooling, several features on one table, weights, sequences, and a dense part."""

    def __init__(self, client: rowraft.Client, name: str, rule: rowraft._schema.Optimizer) -> None:
        super().__init__()
        init = rt.Uniform(-0.1, 0.1, seed=5)
        self.bags = rt.EmbeddingBagCollection(
            client,
            [
                rt.EmbeddingBagConfig(name + "s", 4, ["a", "b"], pooling=rt.SUM, optimizer=rule, init=init),
                rt.EmbeddingBagConfig(name + "m", 4, ["c"], pooling=rt.MEAN, optimizer=rule, init=init),
            ],
            in_flight=0,
        )
        self.weighted = rt.EmbeddingBagCollection(
            client, [rt.EmbeddingBagConfig(name + "w", 4, ["a"], optimizer=rule, init=init)], is_weighted=True,
            in_flight=0,
        )  # fmt: skip
        self.sequence = rt.EmbeddingCollection(
            client, [rt.EmbeddingConfig(name + "q", 4, ["b", "c"], optimizer=rule)], in_flight=0
        )
        self.tables = [name + c for c in "smwq"]
        self.out = torch.nn.Sequential(torch.nn.Linear(20, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))

    def forward(self, features: rt.KeyedJaggedTensor) -> torch.Tensor:
        parts = [self.bags(features).values(), self.weighted(features).values()]
        words = self.sequence(features)["b"]
        example = torch.repeat_interleave(torch.arange(len(words.lengths())), words.lengths())
        sums = torch.zeros(len(words.lengths()), 4).index_add(0, example, words.values().tanh())
        return self.out(torch.cat([*parts, sums], 1))


def batch_of(rng: np.random.Generator, batch: int = 16) -> rt.KeyedJaggedTensor:
    lengths = rng.integers(0, 5, 3 * batch)
    values = (rng.zipf(1.3, lengths.sum()) % 200).astype(np.int64)
    weights = rng.random(lengths.sum()).astype(np.float32)
    return rt.KeyedJaggedTensor(["a", "b", "c"], *(torch.from_numpy(x) for x in (values, weights, lengths)))


class Run:
    """A training run, step by step. Two runs with the same steps have the same bits."""

    def __init__(self, client: rowraft.Client, name: str, rule: rowraft._schema.Optimizer) -> None:
        torch.manual_seed(1)
        self.client, self.rng = client, np.random.default_rng(1)
        self.model = Model(client, name, rule)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def step(self) -> float:
        target = torch.from_numpy(self.rng.integers(0, 2, (16, 1)).astype(np.float32))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(self.model(batch_of(self.rng)), target)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return float(loss)


def same_runs(a: Run, b: Run, losses: tuple[list[float], list[float]]) -> None:
    assert losses[0] == losses[1] and len(set(losses[0])) == len(losses[0])
    for name in a.model.tables:
        assert same_rows(a.client.table(name), b.client.table(name)) > 50
    for x, y in zip(a.model.parameters(), b.model.parameters()):
        assert torch.equal(x, y)


@pytest.mark.parametrize("rule", OPTIMIZERS.values(), ids=lambda c: c.kind)
def test_training_has_the_same_bits(ps, local, name, rule):
    a, b = (Run(c, name, rule()) for c in (ps, local))
    same_runs(a, b, ([a.step() for _ in range(8)], [b.step() for _ in range(8)]))


def test_training_has_the_same_bits_under_kills(cluster, local, name):
    """Three leaders are killed with SIGKILL and restarted while the run on the cluster goes on."""
    with cluster.connect() as ps:
        a, b = (Run(c, name, rt.Adam(lr=0.05)) for c in (ps, local))
        losses, down = [], None
        for step in range(36):
            if step % 12 == 3:
                down = next(s.name for s in ps.servers() if s.leads)
                cluster.kill(down)
            losses.append(a.step())
            if step % 12 == 9:
                cluster.restart(down)
        same_runs(a, b, (losses, [b.step() for _ in range(36)]))


def test_a_job_needs_a_cluster(local):
    with pytest.raises(TypeError, match="client: a job needs a cluster"):
        rt.Job(local, "job", model=Model(local, "t", rt.SGD()))


def test_a_deep_copy_of_a_model_has_the_same_tables(local):
    model = Model(local, "t", rt.SGD(lr=0.1))
    features = batch_of(np.random.default_rng(1))
    model(features).sum().backward()
    model.eval()
    assert torch.equal(copy.deepcopy(model)(features), model(features))
