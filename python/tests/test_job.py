"""rowraft.torch.Job: steps, modes, checkpoints with one cut, and kills."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import warnings
from itertools import chain

import numpy as np
import pytest

import rowraft

torch = pytest.importorskip("torch")

import training  # noqa: E402
from training import IDS, Net, bag, batches, counts, train  # noqa: E402

import rowraft.torch as rt  # noqa: E402
from rowraft.torch._share import Place  # noqa: E402


@contextlib.contextmanager
def other_worker(cluster: rowraft.LocalCluster, a: dict):
    """Run train in a process of its own. It yields a function that waits for its result."""
    a = dict(a, endpoints=cluster.endpoints, certs=cluster.certs)
    p = subprocess.Popen(
        [sys.executable, training.__file__, json.dumps(a)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=dict(os.environ, PYTHONPATH=str(pathlib.Path(rowraft.__file__).parent.parent)),
    )  # fmt: skip

    def result() -> dict:
        out, err = p.communicate(timeout=120)
        assert p.returncode == 0, err
        return json.loads(out.splitlines()[-1])

    try:
        yield result
    finally:
        if p.returncode is None:
            p.kill()
            print(p.communicate()[1], file=sys.stderr)


def rows(ps: rowraft.Client, table: str) -> np.ndarray:
    return ps.table(table).pull(np.arange(IDS))


def sums(ps: rowraft.Client, name: str):
    """A model whose rows count: each id of a batch adds -1."""
    config = rt.EmbeddingBagConfig(name, 2, ["f"], optimizer=rt.SGD(lr=1.0), init=rt.Zeros())
    return rt.EmbeddingBagCollection(ps, [config])


def one(*ids: int) -> rt.KeyedJaggedTensor:
    return bag(torch.tensor(ids), torch.tensor([len(ids)]))


def test_steps(ps, name):
    emb = sums(ps, name)
    with rt.Job(ps, name, model=emb, in_flight=2) as job:
        assert job.resume() == 0
        for step in range(20):
            emb(one(1, 1, 2))["f"].sum().backward()
            emb(one(2, 3))["f"].sum().backward()  # the gradients of several backwards add up
            if step == 0:
                assert (rows(ps, name) == 0).all()
            job.step(step)
        emb.eval()
        assert float(emb(one(1))["f"][0, 0]) in (-40.0, -38.0, -36.0)  # two steps may be under way
    assert rows(ps, name)[:5, 0].tolist() == [0, -40, -40, -20, 0]
    emb.train()
    emb(one(1))["f"].sum().backward()  # without the job, backward pushes
    emb.flush()
    assert rows(ps, name)[1, 0] == -41


def test_bad_input(ps, name, monkeypatch):
    emb = sums(ps, name)
    for message, arguments in {
        "mode: 'fast'": {"mode": "fast"},
        "staleness: None": {"mode": "ssp"},
        "staleness: 3": {"staleness": 3},
        "geo_every": {"geo_every": 3},
        "in_flight: -1": {"in_flight": -1},
        "model: it has no EmbeddingBagCollection": {"model": torch.nn.Linear(1, 1)},
        "worker: want the number": {"workers": 2},
        "worker: 2": {"workers": 2, "worker": 2},
        "worker: 'w'": {"worker": "w"},
        "dense: the model has no parameters": {"dense": rt.SGD(lr=1.0)},
    }.items():
        with pytest.raises(rowraft.InvalidArgumentError, match=message):
            rt.Job(ps, name, **{"model": emb, **arguments})
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "2")
    with rt.Job(ps, name, model=emb) as job:
        assert (job.rank, job.workers) == (2, 3)
        with pytest.raises(rowraft.InvalidArgumentError, match="belongs to another job"):
            rt.Job(ps, name, model=emb)
    with rt.Job(ps, name, model=emb, workers=1, worker="w0") as job:
        with pytest.raises(rowraft.InvalidArgumentError, match="step: 5: want 0"):
            job.step(5)
        (emb(one(1))["f"].sum() * float("nan")).backward()
        with pytest.raises(rowraft.InvalidArgumentError, match=f"gradients of table '{name}'"):
            job.step(0)
        emb(one(1))["f"].sum().backward()
        job.step(0)
        with pytest.raises(rowraft.InvalidArgumentError, match="resume: the job has begun"):
            job.resume()
        with pytest.raises(rowraft.InvalidArgumentError, match="destination"):
            job.checkpoint("relative").result(60)
    with pytest.raises(rowraft.ClosedError):
        job.step(1)
    assert rows(ps, name)[1, 0] == -1


def test_a_worker_is_fenced(cluster, ps, name):
    """A second process with the rank takes the place of the first."""
    first, second = sums(ps, name), sums(ps, name)
    old = rt.Job(ps, name, model=first)
    first(one(1))["f"].sum().backward()
    old.step(0)
    with pytest.raises(rowraft.PreconditionError, match=f"worker w0 of job {name} trains"):
        rt.Job(ps, name, model=second).resume()
    second._job.close()
    with rt.Job(ps, name, model=second) as job:
        second(one(2))["f"].sum().backward()
        job.step(0)
        with pytest.raises(rowraft.SessionExpiredError):  # at the latest with a push
            for step in range(1, 1000):
                first(one(1))["f"].sum().backward()
                old.step(step)
                time.sleep(0.01)
    with pytest.raises(rowraft.SessionExpiredError):
        old.close()


def test_an_exception_leaves_the_job(ps, name):
    emb = sums(ps, name)
    with pytest.raises(ZeroDivisionError), rt.Job(ps, name, model=emb, in_flight=0) as job:
        emb(one(1))["f"].sum().backward()
        job.step(0)
        raise ZeroDivisionError
    # The rows hold steps of a job of which there is no checkpoint.
    job = rt.Job(ps, name, model=emb)
    with pytest.raises(rowraft.PreconditionError, match=f"rowraft job delete {name}"):
        job.resume()
    job.close()


@pytest.mark.parametrize("shuffle", [False, True])
def test_resume_after_a_kill(cluster, ps, name, tmp_path, shuffle):
    """Train, checkpoint, die (-9), resume: the bits of a run without interruption."""
    a = {"in_flight": 0, "batches": 24, "shuffle": shuffle, "to": str(tmp_path), "lease": 60.0}
    want = train(ps, {**a, "job": name + "a", "table": name + "a"})
    b = {**a, "job": name + "b", "table": name + "b"}
    with other_worker(cluster, {**b, "checkpoint_at": 9, "kill_at": 15}) as result, pytest.raises(AssertionError):
        result()
    assert not np.array_equal(rows(ps, name + "a"), rows(ps, name + "b"))
    model = Net(ps, name + "b", rt.Adagrad(lr=0.1))
    job = rt.Job(ps, name + "b", model=model, opt=torch.optim.Adam(model.parameters()), lease=60.0)
    with pytest.raises(rowraft.PreconditionError, match=r"rowraft checkpoint restore .* --replace"):
        job.resume(restore=False)
    job.close()
    with pytest.warns(UserWarning, match=rf"{name}b: the tables {name}b are those of checkpoint .*, step 9"):
        got = train(ps, b)
    assert (got["start"], got["steps"]) == (9, 24)
    assert got["losses"] == want["losses"][9:]
    assert (got["dense"], got["opt"]) == (want["dense"], want["opt"])
    assert np.array_equal(rows(ps, name + "a"), rows(ps, name + "b"))


def test_restored_tables_are_not_restored_again(cluster, ps, name, tmp_path):
    """A job resumes from what an operator has restored, and from a path; another number of workers is refused."""
    a = {"job": name, "table": name, "batches": 8, "to": str(tmp_path), "counting": True}
    train(ps, {**a, "batches": 4, "checkpoint_at": 4})
    first = next(tmp_path.iterdir())
    with pytest.warns(UserWarning, match="step 4"):
        assert train(ps, {**a, "checkpoint_at": 8})["start"] == 4
    last = next(p for p in tmp_path.iterdir() if p != first)
    subprocess.run(
        [
            os.environ["ROWRAFT_BINARY"], "checkpoint", "restore", first, "--table", name, "--replace", "--yes",
            "--endpoints", ",".join(cluster.endpoints), "--certs", cluster.certs,
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # the tables are in place
        assert train(ps, a)["start"] == 4
    with pytest.warns(UserWarning, match="step 8"):
        assert train(ps, {**a, "resume": str(last)})["start"] == 8
    assert (rows(ps, name)[:, 0] == -counts(batches(8))).all()
    for resume, error in (
        (str(tmp_path / "none"), "it is no checkpoint"),
        (str(first), "workers: 2, and job .* has 1"),
    ):
        with pytest.raises(rowraft.Error, match=error):
            train(ps, {**a, "workers": 2, "resume": resume})
    model = Net(ps, name, rt.SGD(lr=1.0))
    job = rt.Job(ps, name, model=model, opt=torch.optim.Adam(model.parameters()))  # the checkpoint has none
    with (
        warnings.catch_warnings(),
        pytest.raises(rowraft.InvalidArgumentError, match=r"opt: checkpoint .* has no optimizer"),
    ):
        warnings.simplefilter("ignore", UserWarning)
        job.resume(str(first))
    with pytest.raises(rowraft.ClosedError):
        next(iter(job.data(batches(8))))


def test_two_workers_in_step(cluster, ps, name, tmp_path):
    """Mode sync: two workers are one with the double batch; the dense weights are on the servers."""
    a = {"job": name, "table": name, "mode": "sync", "workers": 2, "dense": True, "batches": 20, "in_flight": 2}
    with other_worker(cluster, {**a, "worker": 1}) as result:
        mine = train(ps, {**a, "worker": 0})
        other = result()
    assert mine["steps"] == other["steps"] == 10
    for x, y in zip(mine["dense"], other["dense"]):
        assert x == y
    torch.manual_seed(5)
    model = Net(ps, name + "one", rt.Adagrad(lr=0.1))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    data = batches(20)
    with rt.Job(ps, name + "one", model=model, opt=opt, in_flight=0) as job:
        for step, ((i, n, y), (j, m, z)) in enumerate(zip(data[::2], data[1::2])):
            out = model(bag(torch.cat([i, j]), torch.cat([n, m])))
            opt.zero_grad()
            torch.nn.functional.binary_cross_entropy_with_logits(out, torch.cat([y, z])).backward()
            opt.step()
            job.step(step)
    for x, p in zip(mine["dense"], model.parameters()):
        np.testing.assert_allclose(x, p.detach().flatten().numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(rows(ps, name), rows(ps, name + "one"), rtol=1e-4, atol=1e-6)
    assert np.abs(rows(ps, name)).max() > 0.1
    # Both die (-9) behind a checkpoint and resume: the run without interruption, exactly.
    b = {**a, "job": name + "b", "table": name + "b", "in_flight": 0, "to": str(tmp_path), "lease": 60.0}
    killed = {**b, "checkpoint_at": 3, "kill_at": 6, "sleep": 0.3}
    with other_worker(cluster, {**killed, "worker": 0}) as one, other_worker(cluster, {**killed, "worker": 1}) as two:
        for result in (one, two):
            with pytest.raises(AssertionError):
                result()
    with other_worker(cluster, {**b, "worker": 1}) as result:
        with pytest.warns(UserWarning, match="those of checkpoint"):
            resumed = train(ps, {**b, "worker": 0})
        assert 3 <= result()["start"] == resumed["start"] < 10
    assert resumed["dense"] == mine["dense"]
    assert np.array_equal(rows(ps, name), rows(ps, name + "b"))


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed")
def test_data_parallel(cluster, ps, name, tmp_path):
    """Dense weights in DDP: workers that wait for each other there give their states at one step."""
    a = {"job": name, "table": name, "workers": 2, "batches": 24, "to": str(tmp_path / "c"), "checkpoint_every": 1,
         "sleep": 0.05}  # fmt: skip
    with other_worker(cluster, {**a, "worker": 1, "group": str(tmp_path / "g")}) as result:
        # This worker is late with its steps: the other one is in the next step already.
        mine = train(ps, {**a, "worker": 0, "group": str(tmp_path / "g"), "before": 0.1, "sleep": 0})
        assert result()["dense"] == mine["dense"]
    # A pause in which one worker waits for the other in backward lasts 30 s, and may then end well.
    assert max(end - begin for begin, end in zip(mine["begun"], mine["ended"])) < 10
    b = {**a, "batches": 33, "group": str(tmp_path / "h")}  # one more than both can have
    with other_worker(cluster, {**b, "worker": 1}) as result:
        with pytest.warns(UserWarning, match="those of checkpoint"):
            mine = train(ps, {**b, "worker": 0})
        other = result()
    assert 1 <= mine["start"] == other["start"] <= 12
    assert mine["steps"] == other["steps"] == 16 and other["dense"] == mine["dense"]


def test_bounded_staleness(cluster, ps, name, tmp_path):
    """Mode ssp: a fast worker is at most so many steps ahead of a slow one, and no push is lost."""
    a = {"job": name, "table": name, "mode": "ssp", "workers": 2, "staleness": 3, "batches": 60, "counting": True}
    made = []

    def checkpoint(job: rt.Job, step: int) -> None:
        if step == 10:
            made.append(job.checkpoint(str(tmp_path)))

    with other_worker(cluster, {**a, "worker": 1, "sleep": 0.03}) as result:
        fast = train(ps, {**a, "worker": 0}, checkpoint)
        slow = result()
    assert made[0].result(0).rows > 0  # also while the fast worker waits for the slow one
    ahead = [t + 1 - sum(b < end for b in slow["begun"]) for t, end in enumerate(fast["ended"])]
    assert max(ahead) <= 3 and max(ahead) >= 2  # it is used
    assert (rows(ps, name)[:, 0] == -counts(batches(60))).all()


def test_geo(cluster, ps, name):
    """Mode geo: two workers with copies of their own learn."""
    a = {"job": name, "table": name, "mode": "geo", "workers": 2, "geo_every": 10, "dense": True, "batches": 500}
    with other_worker(cluster, {**a, "worker": 1}) as result:
        mine = train(ps, {**a, "worker": 0})
        other = result()
    assert mine["steps"] == other["steps"] == 250
    first, last = np.mean(mine["losses"][:30]), np.mean(mine["losses"][-30:])
    assert last < first - 0.02, (first, last)


def test_dense_weights_on_the_servers(ps, name):
    a = {"in_flight": 0, "batches": 15}
    served = train(ps, {**a, "job": name + "a", "table": name + "a", "dense": True})
    torch.manual_seed(5)
    model = Net(ps, name + "b", rt.Adagrad(lr=0.1))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with rt.Job(ps, name + "b", model=model, opt=opt, in_flight=0) as job:
        for step, (ids, lengths, y) in enumerate(job.data(batches(15))):
            opt.zero_grad()
            torch.nn.functional.binary_cross_entropy_with_logits(model(bag(ids, lengths)), y).backward()
            opt.step()
            job.step(step)
    for x, p in zip(served["dense"], model.parameters()):
        np.testing.assert_allclose(x, p.detach().flatten().numpy(), rtol=1e-5, atol=1e-7)


def test_close_answers_checkpoints(cluster, ps, name, tmp_path):
    """A worker that is done waits in close and gives its state; then both resume, from one cut."""
    a = {"job": name, "table": name, "workers": 2, "batches": 9, "to": str(tmp_path / "c"), "counting": True,
         "prefetch": 2}  # fmt: skip
    closing = tmp_path / "closing"

    def wait(job: rt.Job, step: int) -> None:
        if step == 1:
            while not closing.exists():
                time.sleep(0.01)
            wait.made = job.checkpoint(a["to"])
            with pytest.raises(rowraft.PreconditionError, match="ask for the result later"):
                wait.made.result()
        time.sleep(0.3 if step > 0 else 0)

    with other_worker(cluster, {**a, "worker": 1, "closing": str(closing)}) as result:
        assert train(ps, {**a, "worker": 0}, wait)["steps"] == 5
        assert result()["steps"] == 4
    assert wait.made.result().name.startswith(f"job-{name}-")
    b = {**a, "batches": 15}
    with other_worker(cluster, {**b, "worker": 1}) as result:
        with pytest.warns(UserWarning, match="those of checkpoint"):
            mine = train(ps, {**b, "worker": 0})
        other = result()
    assert 2 <= mine["start"] <= 5 and mine["steps"] == 8
    assert (other["start"], other["steps"]) == (4, 7)
    assert (rows(ps, name)[:, 0] == -counts(batches(15))).all()


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_kills_of_leaders(cluster, name, mode, tmp_path):
    """Each gradient counts once, and training goes on, while a leader is killed every few seconds."""
    ended, killed, made = threading.Event(), [], []

    def kill() -> None:
        while not ended.wait(1.5):
            leader = next((s.name for s in ps.servers() if s.leads), None)
            if leader is not None:
                cluster.kill(leader)
                killed.append(leader)
                ended.wait(2)
                cluster.restart(leader)

    def checkpoint(job: rt.Job, step: int) -> None:
        if step == 30 and job.rank == 0:
            made.append(job.checkpoint(str(tmp_path)))

    a = {"job": name, "table": name, "mode": mode, "workers": 2, "batches": 160, "counting": True, "sleep": 0.05}
    with cluster.connect() as ps, other_worker(cluster, {**a, "worker": 1}) as result:
        thread = threading.Thread(target=kill)
        thread.start()
        try:
            mine = train(ps, {**a, "worker": 0}, checkpoint)
            other = result()
        finally:
            ended.set()
            thread.join()
        assert mine["steps"] == other["steps"] == 80
        assert len(killed) >= 2
        assert made[0].result(0).rows > 0
        share = 2 if mode == "sync" else 1  # a step is the mean of both
        assert (rows(ps, name)[:, 0] * share == -counts(batches(160))).all()


def test_prefetch(ps, name):
    """The place in the data is that of the batches that were returned, not of those that were read ahead."""
    emb = sums(ps, name)
    for mode, options in {"async": {}, "sync": {}, "ssp": {"staleness": 1}, "geo": {}}.items():
        with rt.Job(ps, f"{name}{mode}", model=emb, mode=mode, **options) as job:
            if mode == "geo":  # its tables add
                emb._configs[0].name += "g"
            for step, features in enumerate(rt.prefetch(job.data(one(i) for i in range(10)), emb, depth=3)):
                emb(features)["f"].sum().backward()
                job.step(step)
                assert job._place.save(job.ahead)["batch"] == step + 1
    assert (rows(ps, name)[:10, 0] == -3).all() and (rows(ps, name + "g")[:10, 0] == -1).all()


@pytest.mark.filterwarnings("ignore:job .* are those of checkpoint")
@pytest.mark.parametrize("how", ["result", "close"])
def test_the_place_is_that_of_the_last_step(ps, name, tmp_path, how):
    """A batch that was read, and has no step yet, is read again."""
    emb, order = sums(ps, name), torch.utils.data.DataLoader(range(12), batch_size=1, shuffle=True)

    def train(job: rt.Job, start: int, stop: int) -> None:
        batches = (int(i) for _ in range(2) for i in job.data(order))
        for step, i in enumerate(batches, start):
            if step == stop:
                made = job.checkpoint(str(tmp_path))
                if how == "result":
                    made.result(60)
                return
            emb(one(i))["f"].sum().backward()
            job.step(step)

    torch.manual_seed(3)
    for stop in (5, 12, 17, -1):  # 12: the second pass has begun, and drawn its order
        with rt.Job(ps, name, model=emb) as job:
            train(job, job.resume(), stop)
    assert (rows(ps, name)[:13, 0] == [-2] * 12 + [0]).all()


def test_interrupted_step(ps, name, monkeypatch):
    """Ctrl-C while a step waits for an earlier push: the same step may be called again, and nothing is lost."""
    emb = sums(ps, name)

    def interrupt(*_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    with rt.Job(ps, name, model=emb, in_flight=1) as job:
        for step in range(3):
            emb(one(4))["f"].sum().backward()
            if step > 0:
                monkeypatch.setattr(rowraft.Future, "_settle", interrupt)
                under_way = job._pushes[0]
                with pytest.raises(KeyboardInterrupt):
                    job.step(step)
                assert under_way in job._pushes  # close would wait for it
            job.step(step)
    assert rows(ps, name)[4, 0] == -3


@pytest.mark.parametrize("kind", [list, lambda data: torch.utils.data.DataLoader(data, batch_size=1)])
def test_even_shares(kind):
    """Workers in DistributedDataParallel get equally many batches, or the last backward would wait for ever."""
    shares = [[int(x) for x in Place(rank, 3, even=True).iterate(kind(range(11)))] for rank in range(3)]
    assert shares == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_place_after_prefetch(ps, name):
    """Batches that a pass has read ahead, and a loop has left behind, are none of the next pass."""
    emb = sums(ps, name)
    with rt.Job(ps, name, model=emb) as job:
        for features in rt.prefetch(job.data(one(i) for i in range(10)), emb, depth=3):
            emb(features)["f"].sum().backward()
            job.step(0)
            break
        for step, features in enumerate(job.data(one(i) for i in range(5)), 1):
            emb(features)["f"].sum().backward()
            job.step(step)
            place = job._cut["place"]
            assert (place["pass"], place["batch"]) == (1, step)


def test_close_with_gradients(ps, name):
    """They belong to no step: close warns that they are dropped."""
    emb = sums(ps, name)
    job = rt.Job(ps, name, model=emb)
    emb(one(1))["f"].sum().backward()
    with pytest.warns(UserWarning, match=f"job {name}: gradients of table {name}.* no step"):
        job.close()


def test_the_rows_of_sync(ps, name):
    """They have the step before, also with prefetch and with pushes under way."""
    emb = sums(ps, name)
    with rt.Job(ps, name, model=emb, mode="sync") as job:
        for step, features in enumerate(rt.prefetch(job.data(one(7) for _ in range(15)), emb, depth=2)):
            out = emb(features)["f"]
            assert float(out[0, 0]) == -step
            out.sum().backward()
            job.step(step)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", ["list", "loader", "shuffle"])
def test_places(workers, kind):
    """Each batch once, in each pass, whatever the place at which a worker begins again."""

    def data():
        if kind == "list":
            return list(range(10))
        return torch.utils.data.DataLoader(
            range(10), batch_size=None if kind == "list" else 1, shuffle=kind == "shuffle"
        )

    def read(place: Place, passes: int, most: int | None = None) -> list[list[int]]:
        out = []
        for _ in range(passes):
            out.append([])
            for x in place.iterate(data()):
                out[-1].append(int(x))
                if most is not None and sum(map(len, out)) == most:
                    return out
        return out

    def seeded() -> None:
        torch.manual_seed(3)

    whole = []
    for rank in range(workers):
        seeded()
        whole.append(read(Place(rank, workers), 3))
    for p in range(3):
        assert sorted(x for w in whole for x in w[p]) == list(range(10))
    for rank in range(workers):
        size = sum(map(len, whole[rank]))
        for stop in range(1, size):
            seeded()
            place = Place(rank, workers)
            before = read(place, 3, stop)
            again = Place(rank, workers)
            again.load(place.save(0))
            state = torch.get_rng_state()
            torch.manual_seed(99)
            torch.set_rng_state(state)
            after = read(again, 3)
            assert list(chain(*before, *after)) == list(chain(*whole[rank]))
