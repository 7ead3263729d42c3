"""state_dict: a reference to tables and checkpoint, not rows."""

from __future__ import annotations

import hashlib
import json
import subprocess
import warnings

import pytest

import rowraft
from rowraft import _lib

torch = pytest.importorskip("torch")

import rowraft.torch as rt  # noqa: E402


class Model(torch.nn.Module):
    def __init__(self, client: rowraft.Client, name: str, dim: int = 3, **options) -> None:
        super().__init__()
        options.setdefault("init", rt.Zeros())
        self.emb = rt.EmbeddingBagCollection(client, [rt.EmbeddingBagConfig(name, dim, ["f"], **options)])
        self.out = torch.nn.Linear(dim, 1)

    def forward(self, features):
        return self.out(self.emb(features)["f"])


BATCH = rt.KeyedJaggedTensor(["f"], torch.tensor([1, 2, 1]), lengths=torch.tensor([2, 1]))


def train(model: Model) -> None:
    model(BATCH).sum().backward()
    model.emb.flush()


def reference(state: dict) -> dict:
    return json.loads(state["emb._extra_state"])


def restore(cluster: rowraft.LocalCluster, path: str, name: str) -> None:
    command = [str(_lib.find("rowraft", "ROWRAFT_BINARY")), "checkpoint", "restore", path, "--table", name]
    where = ["--endpoints", ",".join(cluster.endpoints), "--certs", cluster.certs]
    subprocess.run([*command, "--replace", "--yes", *where], check=True, capture_output=True, timeout=60)


def quietly(model: Model, state: dict) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.load_state_dict(state)


def test_the_reference(ps, name, tmp_path):
    model = Model(ps, name)
    before = reference(model.state_dict())  # it makes no call, and creates no table
    assert before == {"rowraft": 1, "tables": [{"name": name, "dim": 3, "storage": "float32"}], "checkpoint": None}
    assert name not in [t.name for t in ps.tables()]
    train(model)
    made = ps.checkpoint(f"{tmp_path}/")
    assert made.digest == hashlib.sha256((tmp_path / made.name / "MANIFEST").read_bytes()).hexdigest()
    got = reference(model.state_dict())
    assert got["checkpoint"] == {"path": f"{tmp_path}/{made.name}", "id": made.id, "digest": made.digest}
    assert got["tables"][0]["optimizer"] == "rowwise-adagrad" and "rows" not in got["tables"][0]
    assert set(model.state_dict()) == {"emb._extra_state", "out.weight", "out.bias"}


def test_the_rows_come_back_with_the_command_of_the_warning(cluster, ps, name, tmp_path):
    model = Model(ps, name)
    train(model)
    made = ps.checkpoint(str(tmp_path))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    rows, weight = ps.table(name).pull([1, 2]), model.out.weight.detach().clone()
    train(model)

    state = torch.load(tmp_path / "model.pt", weights_only=True)
    with cluster.connect() as later:
        new = Model(later, name)
        command = f"rowraft checkpoint restore {made.path} --table {name} --replace"
        with pytest.warns(UserWarning, match=f"'{name}' is not restored from .*{made.id}.*{command}"):
            new.load_state_dict(state)
        assert torch.equal(new.out.weight, weight)
        restore(cluster, made.path, name)
        quietly(new, state)
        assert (later.table(name).pull([1, 2]) == rows).all()
        assert reference(Model(later, name).state_dict())["checkpoint"] is None  # this client has made none


def test_a_reference_without_a_checkpoint(ps, name):
    model = Model(ps, name)
    with pytest.warns(UserWarning, match=f"table '{name}' is not on the cluster"):
        model.load_state_dict(model.state_dict())
    train(model)
    quietly(model, model.state_dict())


def test_local_tables(name):
    with rowraft.local_tables() as local:
        model = Model(local, name)
        train(model)
        quietly(Model(local, name), model.state_dict())


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("dim", {"dim": 4}),
        ("storage", {"storage": "bfloat16"}),
        ("optimizer", {"optimizer": rt.SGD()}),
        ("constants", {"optimizer": rt.RowwiseAdagrad(lr=0.5)}),
        ("init", {"init": rt.Normal()}),
        ("admit", {"admit": rt.Count(3)}),
        ("expire", {"expire": "1h"}),
    ],
)
def test_tables_of_another_shape_are_refused(ps, name, field, options):
    """The cluster has a table of the same name that is not the one of the state."""
    model = Model(ps, name, **options)
    train(model)
    state = model.state_dict()
    ps.drop_table(name)
    ps.create_table(name, 3, init=rt.Zeros())
    with pytest.raises(rowraft.TableExistsError, match=f"state_dict: table '{name}' has {field} "):
        Model(ps, name, **options).load_state_dict(state)


@pytest.mark.parametrize(
    ("state", "names"),
    [
        (None, "a NoneType: want the text"),
        ("{}", "none of a rowraft collection"),
        ("[1", "none of a rowraft collection"),
        ('{"rowraft": 1, "tables": [1], "checkpoint": null}', "none of a rowraft collection"),
        ('{"rowraft": 1, "tables": [], "checkpoint": {"path": "/a/b"}}', "none of a rowraft collection"),
        ('{"rowraft": 2, "tables": [], "checkpoint": null}', "version 2, this rowraft knows 1: upgrade it"),
        ('{"rowraft": 1, "tables": [], "checkpoint": null}', "it has the tables , and the module has 'a' "),
        (
            '{"rowraft": 1, "tables": [{"name": "a", "dim": 9}], "checkpoint": null}',
            r"it has the tables 'a' \(dim 9\), and the module has 'a' \(dim 3\)",
        ),
    ],
)
def test_bad_states(state, names):
    with rowraft.local_tables() as local:
        model = Model(local, "a")
        with pytest.raises(rowraft.InvalidArgumentError, match=f"state_dict: .*{names}"):
            model.load_state_dict({**model.state_dict(), "emb._extra_state": state})


def test_a_closed_client(cluster, name):
    ps = cluster.connect()
    model = Model(ps, name)
    train(model)
    ps.close()
    state = model.state_dict()  # no call
    with pytest.raises(rowraft.ClosedError):
        model.load_state_dict(state)


def test_a_job_refers_to_its_checkpoint(cluster, ps, name, tmp_path):
    """To the one that it made, and after resume to the one that it resumed from."""
    model = Model(ps, name)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with rt.Job(ps, name, model=model, opt=opt) as job:
        job.resume()
        model(BATCH).sum().backward()
        opt.step()
        job.step(0)
        made = job.checkpoint(str(tmp_path)).result()
        want = {"path": f"{tmp_path}/{made.name}", "id": made.id, "digest": made.digest}
        assert made.digest == hashlib.sha256((tmp_path / made.name / "MANIFEST").read_bytes()).hexdigest()
        assert reference(model.state_dict())["checkpoint"] == want
    with cluster.connect() as later:
        new = Model(later, name)
        with rt.Job(later, name, model=new, opt=torch.optim.SGD(new.parameters(), lr=0.1)) as job:
            with pytest.warns(UserWarning, match=made.name):
                assert job.resume() == 1
            assert reference(new.state_dict())["checkpoint"] == want
            assert reference(new.state_dict())["tables"][0]["optimizer"] == "rowwise-adagrad"


def test_distributed_checkpoint(ps, name, tmp_path):
    dcp = pytest.importorskip("torch.distributed.checkpoint", reason="this torch has no torch.distributed.checkpoint")
    if not hasattr(dcp, "save"):
        pytest.skip("torch.distributed.checkpoint of this torch has no save")
    model = Model(ps, name)
    train(model)
    ps.checkpoint(str(tmp_path / "rows"))
    opt = torch.optim.Adam(model.parameters())
    opt.step()
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    state, opt_state = get_state_dict(model, opt)
    dcp.save({"model": state, "opt": opt_state}, checkpoint_id=str(tmp_path / "dense"))

    new = Model(ps, name)
    new_opt = torch.optim.Adam(new.parameters())
    loaded, loaded_opt = get_state_dict(new, new_opt)
    loaded["emb._extra_state"] = ""
    dcp.load({"model": loaded, "opt": loaded_opt}, checkpoint_id=str(tmp_path / "dense"))
    assert loaded["emb._extra_state"] == state["emb._extra_state"] and reference(loaded)["checkpoint"] is not None
    with pytest.warns(UserWarning, match="checkpoint restore"):
        set_state_dict(new, new_opt, model_state_dict=loaded, optim_state_dict=loaded_opt)
    assert torch.equal(new.out.weight, model.out.weight)
    assert torch.equal(new(BATCH), model(BATCH))
