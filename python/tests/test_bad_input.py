"""Wrong arguments of the modules: the error names them, and nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest

import rowraft

torch = pytest.importorskip("torch")

import rowraft.torch as rt  # noqa: E402

ONE = torch.tensor([1])


def kjt(values, lengths, weights=None, keys=("f",)) -> rt.KeyedJaggedTensor:
    return rt.KeyedJaggedTensor(list(keys), values, weights, lengths)


@pytest.fixture
def local():
    with rowraft.local_tables() as client:
        yield client


@pytest.mark.parametrize(
    ("options", "error", "names"),
    [
        ({"name": 3}, TypeError, "name: 3"),
        ({"name": "1 bad"}, ValueError, 'table name "1 bad"'),
        ({"embedding_dim": "4"}, TypeError, "embedding_dim: '4' of table 'a'"),
        ({"embedding_dim": 0}, ValueError, "table a: dim 0"),
        ({"feature_names": "user"}, TypeError, "feature_names: 'user' of table 'a': want a list"),
        ({"feature_names": [1]}, TypeError, r"feature_names: \[1\]"),
        ({"optimizer": torch.optim.Adam}, TypeError, "optimizer: .*torch.optim"),
        ({"optimizer": rt.Adam}, TypeError, "optimizer: .*of table 'a'"),
        ({"optimizer": rt.Adam(lr="x")}, TypeError, "optimizer: lr 'x' of Adam"),
        ({"optimizer": rt.Adam(betas=0.9)}, TypeError, "optimizer: betas 0.9 of Adam: want two numbers"),
        ({"optimizer": rt.Adam(lr=float("nan"))}, ValueError, "optimizer: lr nan of Adam"),
        ({"optimizer": rt.Adam(lr=-1)}, ValueError, "constants must be finite and ≥ 0, got lr -1"),
        ({"init": "zeros"}, TypeError, "init: 'zeros'"),
        ({"admit": 3}, TypeError, "admit: 3"),
        ({"storage": "int8"}, ValueError, 'storage "int8"'),
        ({"expire": "soon"}, ValueError, 'expiry "soon"'),
        ({"pooling": "sum"}, TypeError, "pooling: 'sum' of table 'a'"),
    ],
)
def test_bad_tables(local, options, error, names):
    config = {"name": "a", "embedding_dim": 2, "feature_names": ["f"], **options}
    with pytest.raises(error, match=names):
        rt.EmbeddingBagCollection(local, [rt.EmbeddingBagConfig(**config)])(kjt(ONE, ONE))
    assert not local.tables()


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda c: rt.EmbeddingBagCollection("ps0:7070", [c]), "client: 'ps0:7070'"),
        (lambda c: rt.EmbeddingBagCollection(rowraft.connect("h:1"), []), r"tables: .*got \[\]"),
        (lambda c: rt.EmbeddingBagCollection(rowraft.connect("h:1"), c), "tables: want a list of EmbeddingBagConfig"),
        (
            lambda c: rt.EmbeddingBagCollection(rowraft.connect("h:1"), [rt.EmbeddingConfig("a", 2, ["f"])]),
            "tables: want a list of EmbeddingBagConfig",
        ),
        (lambda c: rt.EmbeddingCollection(rowraft.connect("h:1"), [c], in_flight=1.5), "in_flight: 1.5"),
        (lambda c: next(rt.prefetch([], torch.nn.Linear(1, 1))), "module: .*got Linear"),
        (
            lambda c: next(rt.prefetch([(ONE, ONE)], rt.EmbeddingBagCollection(rowraft.connect("h:1"), [c]))),
            "data: a batch has no KeyedJaggedTensor",
        ),
        (lambda c: rt.export({}, "out"), "model: .*got dict"),
        (lambda c: rt.export(torch.nn.Linear(1, 1), 3), "path: 3"),
    ],
)
def test_bad_arguments(make, names):
    with pytest.raises(TypeError, match=names):
        make(rt.EmbeddingBagConfig("a", 2, ["f"]))


@pytest.mark.parametrize(
    ("features", "error", "names"),
    [
        (lambda: kjt(ONE, ONE.to("meta"), ONE.float()), ValueError, "lengths: on meta, and values on cpu"),
        (lambda: kjt(ONE, ONE, ONE.float().to("meta")), ValueError, "weights: on meta, and values on cpu"),
        (lambda: kjt(ONE, ONE, torch.ones(2)), ValueError, r"weights: shape \(2,\)"),
        (lambda: kjt(ONE, ONE.float(), ONE.float()), TypeError, "lengths: dtype torch.float32"),
        (lambda: kjt(np.array([1]), np.array([1])), TypeError, "values: want a tensor, got ndarray"),
        (lambda: kjt(ONE, [1], ONE.float()), TypeError, "lengths: want a tensor, got list"),
        (lambda: kjt(ONE[None], ONE, ONE[None].float()), ValueError, "want values with one dimension"),
        (
            lambda: kjt(torch.tensor([1, 2]), torch.tensor([1, 1]), torch.ones(2), keys="ff"),
            ValueError,
            "a feature appears twice",
        ),
    ],
)
def test_bad_features(local, features, error, names):
    emb = rt.EmbeddingBagCollection(local, [rt.EmbeddingBagConfig("b", 2, ["f"])], is_weighted=True)
    emb._open()
    with pytest.raises(error, match=names):
        emb(features())
    assert [t.rows for t in local.tables() if t.name == "b"] == [0]


def test_rows_of_another_module(local):
    """They would be trained with the gradients of this one."""
    a, b = (rt.EmbeddingBagCollection(local, [rt.EmbeddingBagConfig(n, 2, ["f"])]) for n in ("c", "d"))
    with pytest.raises(rowraft.InvalidArgumentError, match="features: this Prepared is of another module"):
        b(a.prepare(kjt(ONE, ONE)))


@pytest.mark.parametrize(
    "options",
    [
        {"embedding_dim": 3},
        {"optimizer": rt.Adam()},
        {"init": rt.Normal()},
        {"storage": "bfloat16"},
        {"admit": rt.Count(2)},
    ],
    ids=lambda o: next(iter(o)),
)
def test_a_table_of_another_shape(ps, name, options):
    """A module does not train the table of another one that has its name."""
    ours = ps.create_table(name, 2)
    ours.push([1], np.ones((1, 2), np.float32))
    rows = ours.pull([1])
    config = {"name": name, "embedding_dim": 2, "feature_names": ["f"], **options}
    other = rt.EmbeddingBagCollection(ps, [rt.EmbeddingBagConfig(**config)])
    for _ in range(2):
        with pytest.raises(rowraft.TableExistsError, match=name) as e:
            other(kjt(ONE, ONE))
        assert not e.value.maybe_applied
    assert (ours.pull([1]) == rows).all()


@pytest.mark.parametrize("in_flight", [0, 4])
def test_a_closed_client(cluster, ps, name, in_flight):
    """Pushes before close are there; a later one is refused, and nothing of it is applied."""
    client = cluster.connect()
    config = rt.EmbeddingBagConfig(name, 2, ["f"], optimizer=rt.SGD(lr=1.0), init=rt.Zeros())
    emb = rt.EmbeddingBagCollection(client, [config], in_flight=in_flight)
    emb(kjt(ONE, ONE))["f"].sum().backward()
    emb.flush()
    pulled = emb(kjt(ONE, ONE))["f"]
    client.close()
    with pytest.raises(rowraft.ClosedError, match="closed"):
        pulled.sum().backward()
    for call in (lambda: emb(kjt(ONE, ONE)), emb.flush):
        with pytest.raises(rowraft.ClosedError, match="closed"):
            call()
    assert ps.table(name).pull([1]).tolist() == [[-1, -1]]


@pytest.mark.parametrize("in_flight", [0, 4])
def test_a_table_that_was_dropped(ps, name, in_flight):
    """The module does not train a later table of its name; the other table of the batch goes on."""
    configs = [
        rt.EmbeddingBagConfig(name + t, 2, [f], optimizer=rt.SGD(lr=1.0), init=rt.Zeros()) for t, f in ("af", "bg")
    ]
    emb = rt.EmbeddingBagCollection(ps, configs, in_flight=in_flight)
    batch = kjt(torch.tensor([1, 1]), torch.tensor([1, 1]), keys="fg")
    pooled = emb(batch)
    ps.drop_table(name + "a")
    later = ps.create_table(name + "a", 2, optimizer=rt.SGD(lr=1.0), init=rt.Zeros())
    with pytest.raises(rowraft.TableNotFoundError) as e:
        pooled["f"].sum().backward()
        emb.flush()
    assert not e.value.maybe_applied
    pooled["g"].sum().backward()
    emb.flush()
    with pytest.raises(rowraft.TableNotFoundError):
        emb(batch)
    assert not list(later.scan()) and ps.table(name + "b").pull([1]).tolist() == [[-1, -1]]
