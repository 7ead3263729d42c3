"""The client against real servers."""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import threading
import time
import weakref

import numpy as np
import pytest

import rowraft
from rowraft import _client, _lib


def fill(shape: tuple[int, ...], value: float = 1.0) -> np.ndarray:
    return np.full(shape, value, np.float32)


def test_nothing_is_opened_before_the_first_use():
    ps = rowraft.connect("127.0.0.1:1", timeout=0.3)
    assert ps._id == 0
    with pytest.raises(rowraft.Error, match=r"127\.0\.0\.1:1"):
        ps.table("user")
    ps.flush()
    ps.close()


def test_a_table(ps, name):
    made = ps.create_table(
        name, 4, optimizer=rowraft.Adam(lr=0.5, betas=(0.8, 0.9)), init=rowraft.Normal(1, 2, seed=3),
        storage="bfloat16", admit=rowraft.Count(3), expire="168h", capacity=1 << 20,
    )  # fmt: skip
    info = ps.table(name).describe()
    assert info == made.describe()
    assert (info.dim, info.optimizer, info.admit, info.expire, info.evict) == (4, "adam", "count:3", "604800", "lru")
    assert info.constants["beta1"] == pytest.approx(0.8) and info.init["std"] == 2
    assert {t.name for t in ps.tables()} >= {name}
    with pytest.raises(rowraft.TableExistsError):
        ps.create_table(name, 4)
    with pytest.raises(rowraft.TableExistsError):
        ps.create_table(name, 8, exist_ok=True)
    ps.drop_table(name)
    with pytest.raises(rowraft.TableNotFoundError) as e:
        ps.table(name)
    assert e.value.code == rowraft.Code.TABLE_NOT_FOUND and not e.value.maybe_applied
    with pytest.raises(rowraft.TableNotFoundError):
        made.pull([1])


@pytest.mark.parametrize("rule", rowraft._schema.OPTIMIZERS.values(), ids=lambda c: c.kind)
def test_every_optimizer(ps, name, rule):
    t = ps.create_table(name, 2, optimizer=rule(bound=8))
    assert t.describe().optimizer == rule.kind and t.describe().constants["bound"] == 8
    assert ps.create_table(name, 2, optimizer=rule(bound=8), exist_ok=True).describe() == t.describe()


def test_rows(ps, name):
    t = ps.create_table(name, 3, optimizer=rowraft.SGD(lr=1.0), init=rowraft.Zeros())
    keys = np.array([[1, 2**63 - 1], [5, 1]])
    t.push(keys, fill((2, 2, 3)))
    want = np.array([[-2, -1], [-1, -2]], np.float32)[..., None].repeat(3, -1)  # a repeated key is summed
    assert (t.pull(keys) == want).all()
    out = fill((2, 2, 3))
    assert t.pull(keys, out) is out and (out == want).all()
    assert (t.pull(keys, mode="linearizable") == want).all()
    assert t.pull(keys, mode="bounded", max_age=10).shape == want.shape
    rows, present = t.pull_present(np.array([1, 9], np.uint64))
    assert present.tolist() == [True, False] and (rows[1] == 0).all()
    t.push([7], fill((1, 3)), lr=0.5)
    assert (t.pull([7]) == -0.5).all()
    largest = np.array([7, 2**64 - 1], np.uint64)
    t.assign(largest, fill((2, 3), 4))
    assert (t.pull(largest) == 4).all()
    t.delete([7, 8])
    assert (t.pull([7]) == 0).all()
    assert t.pull([]).shape == (0, 3)
    t.push([], np.empty((0, 3), np.float32))


def test_several_tables_in_one_call(ps, name):
    a = ps.create_table(name + "a", 2, optimizer=rowraft.Add(), init=rowraft.Zeros())
    b = ps.create_table(name + "b", 3, optimizer=rowraft.Add(), init=rowraft.Zeros())
    ps.push_many([(a, [1], fill((1, 2))), (b, [1, 2], fill((2, 3), 2))])
    x, y = ps.pull_many([(a, [1]), (b, [2])])
    assert (x == 1).all() and (y == 2).all() and y.shape == (1, 3)
    assert [r.sum() for r in ps.pull_many_async([(a, [1]), (b, [1])]).result()] == [2, 6]


def test_scan(ps, name):
    t = ps.create_table(name, 2, optimizer=rowraft.Add(), init=rowraft.Zeros())
    keys = np.arange(10_000, dtype=np.uint64)
    t.push(keys, np.stack([keys, keys], 1).astype(np.float32))
    batches = list(t.scan(batch_rows=4096))
    assert [len(k) for k, _ in batches] == [4096, 4096, 10_000 - 2 * 4096]
    got, rows = np.concatenate([k for k, _ in batches]), np.concatenate([w for _, w in batches])
    assert (np.sort(got) == keys).all() and (rows[:, 1] == got).all()
    for k, _ in t.scan(batch_rows=10):  # a scan that is not read to its end is closed
        assert len(k) == 10
        break


@pytest.mark.parametrize(
    ("keys", "grads", "error", "names"),
    [
        ([-1], fill((1, 3)), rowraft.InvalidArgumentError, "keys: -1 is negative"),
        ([1.5], fill((1, 3)), TypeError, "keys: dtype float64"),
        (["x"], fill((1, 3)), TypeError, "keys: dtype"),
        ([1], np.ones((1, 3)), TypeError, "grads: dtype float64"),
        ([1], fill((1, 4)), ValueError, r"grads: shape \(1, 4\)"),
        ([1, 2], fill((1, 3)), ValueError, r"grads: shape \(1, 3\)"),
        ([1], fill((1, 3), np.nan), rowraft.InvalidArgumentError, "gradients and weights must be finite"),
        ([1], fill((1, 3), np.inf), rowraft.InvalidArgumentError, "gradients and weights must be finite"),
    ],
)
def test_bad_input(ps, name, keys, grads, error, names):
    t = ps.create_table(name, 3, optimizer=rowraft.Add(), init=rowraft.Zeros())
    t.push([1, 2], fill((2, 3)))
    with pytest.raises(error, match=names) as e:
        t.push(keys, grads)
    assert not getattr(e.value, "maybe_applied", False)
    assert (t.pull([1, 2]) == 1).all()


def test_more_bad_input(ps, name):
    t = ps.create_table(name, 3)
    with pytest.raises(rowraft.InvalidArgumentError, match="out: float64"):
        t.pull([1], np.empty((1, 3)))
    with pytest.raises(rowraft.InvalidArgumentError, match="out: want a C-contiguous"):
        t.pull([1, 2], np.empty((3, 2), np.float32).T)
    with pytest.raises(rowraft.InvalidArgumentError, match="mode"):
        t.pull([1], mode="psychic")
    with pytest.raises(rowraft.InvalidArgumentError, match="max_age"):
        t.pull([1], max_age=1)
    with pytest.raises(rowraft.InvalidArgumentError, match="lr: nan"):
        t.push([1], fill((1, 3)), lr=float("nan"))
    with pytest.raises(rowraft.InvalidArgumentError, match="dim 0"):
        ps.create_table(name + "x", 0)
    with pytest.raises(rowraft.InvalidArgumentError, match="endpoints"):
        rowraft.connect([])


def test_a_closed_client(cluster, name):
    ps = cluster.connect()
    t = ps.create_table(name, 3)
    ps.close()
    ps.close()
    for call in (lambda: t.pull([1]), lambda: t.push([1], fill((1, 3))), lambda: ps.table(name), ps.flush):
        with pytest.raises(rowraft.ClosedError):
            call()


def test_a_client_that_is_closed_while_it_connects(cluster, monkeypatch):
    """By another thread before it has the lock, or by a signal handler after that."""
    clients = _lib.call("runtime")["clients"]
    for function in ("load", "call"):
        ps, real = cluster.connect(), getattr(_lib, function)

        def close_first(*args, ps=ps, real=real, function=function, **named):
            monkeypatch.setattr(_lib, function, real)
            ps.close()
            return real(*args, **named)

        monkeypatch.setattr(_lib, function, close_first)
        with pytest.raises(rowraft.ClosedError):
            ps.tables()
        assert not ps._id and _lib.call("runtime")["clients"] == clients


def test_async(ps, name):
    t = ps.create_table(name, 3, optimizer=rowraft.Add(), init=rowraft.Zeros())
    pushes = [t.push_async(np.arange(100), fill((100, 3))) for _ in range(200)]
    assert len(ps._pending) <= ps._in_flight
    assert [f.result() for f in pushes] == [None] * 200
    assert all(f.done() for f in pushes)
    pulls = [t.pull_async([i]) for i in range(100)]
    assert all((f.result() == 200).all() for f in pulls)
    ps.flush()
    assert not ps._pending


def sleeping(seconds: float) -> _client.Future[None]:
    """A call that lasts so long."""
    request = f'{{"call": "sleep", "with": {{"seconds": {seconds}}}}}'.encode()
    op = _lib.Operation(_lib.CALL, 0, request=request, wait=False)
    return _client.Future(rowraft.connect("127.0.0.1:1"), op, None, False)


def test_cancel_ends_a_wait_in_another_thread():
    f, raised = sleeping(30), []

    def wait() -> None:
        try:
            f.result()
        except rowraft.DeadlineError as e:
            raised.append(e)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)  # until it is in the library
    f.cancel()
    thread.join(10)
    assert not thread.is_alive() and raised


def test_memory_of_an_operation_that_is_dropped():
    """Ctrl-C between the start of a call and its Future drops the operation. It ends before its memory is freed."""

    class Memory:
        pass

    before = _lib.call("runtime")["operations"]
    keep, request = Memory(), b'{"call": "sleep", "with": {"seconds": 30}}'
    freed = weakref.ref(keep)
    op = _lib.Operation(_lib.CALL, 0, request=request, keep=keep, wait=False)
    running = []
    weakref.finalize(keep, lambda: running.append(_lib.call("runtime")["operations"]))
    del keep, op
    assert freed() is None and running == [before]
    op = _lib.Operation(_lib.CALL, 0, request=b'{"call": "codes"}')
    assert op.status.text_bytes  # which nothing takes
    del op
    assert _lib.call("runtime")["operations"] == before


def test_flush_raises_what_no_result_raised(ps, name):
    t = ps.create_table(name, 3)
    t.push_async([1], fill((1, 3), np.nan))
    f = t.push_async([1], fill((1, 3), np.nan))
    with pytest.raises(rowraft.InvalidArgumentError):
        f.result()
    with pytest.raises(rowraft.InvalidArgumentError):
        ps.flush()  # of the first one
    ps.flush()


def test_flush_raises_what_came_after_an_error_that_was_raised(ps, name):
    t = ps.create_table(name, 3)
    f = t.push_async([1], fill((1, 3), np.nan))
    wait_until(f.done)
    t.push_async([1], fill((1, 3), np.nan))  # finds that f has ended
    with pytest.raises(rowraft.InvalidArgumentError):
        f.result()
    with pytest.raises(rowraft.InvalidArgumentError):
        ps.flush()  # of the second one
    ps.flush()


class Calls(collections.deque):
    """Calls under way, with what other threads do."""

    def __bool__(self) -> bool:
        return True  # another thread takes the last one after that

    def remove(self, f) -> None:
        super().remove(f)
        self.removed()


def test_flush_next_to_other_threads(ps, name):
    t = ps.create_table(name, 3)
    ps._pending, raised = Calls(), []

    def flush() -> None:
        try:
            ps.flush()
        except rowraft.InvalidArgumentError as e:
            raised.append(e)

    ps._pending.removed = flush
    ps.flush()
    t.push_async([1], fill((1, 3), np.nan))
    ps._reap(0)
    assert raised


def test_checkpoint(ps, name, tmp_path):
    t = ps.create_table(name, 3)
    t.push(np.arange(10), fill((10, 3)))
    made = ps.checkpoint(str(tmp_path), name="first")
    assert made.name == "first" and made.rows >= 10 and (tmp_path / "first").is_dir()
    assert ps.checkpoint(str(tmp_path), delta=True).note == ""
    with pytest.raises(rowraft.AlreadyExistsError):
        ps.checkpoint(str(tmp_path), name="first")


def test_servers(ps):
    servers = ps.servers()
    assert [s.name for s in servers] == ["n1", "n2", "n3"] and all(s.up for s in servers)


def test_a_killed_leader(cluster, name):
    """No push is lost or applied twice, from 4 threads and asynchronously, while the leader of a shard is killed."""
    with cluster.connect() as ps:
        t = ps.create_table(name, 8, optimizer=rowraft.Add(), init=rowraft.Zeros())
        keys = np.arange(512)
        killed, acknowledged, stop = threading.Event(), [0] * 4, threading.Event()

        def train(i: int) -> None:
            while not stop.is_set():
                futures = [t.push_async(keys, fill((512, 8))) for _ in range(3)]
                t.push(keys, fill((512, 8)))
                for f in futures:
                    f.result()
                acknowledged[i] += 4

        threads = [threading.Thread(target=train, args=(i,)) for i in range(4)]
        for th in threads:
            th.start()
        try:
            wait_until(lambda: min(acknowledged) >= 8)
            leader = next(s.name for s in ps.servers() if s.leads)
            cluster.kill(leader)
            killed.set()
            before = list(acknowledged)
            wait_until(lambda: all(n > b + 8 for n, b in zip(acknowledged, before)))
        finally:
            stop.set()
            for th in threads:
                th.join()
            if killed.is_set():
                cluster.restart(leader)
        assert (t.pull(keys) == sum(acknowledged)).all()
        assert (t.pull(keys, mode="linearizable") == sum(acknowledged)).all()


def wait_until(condition, seconds: float = 60) -> None:
    late = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < late, "it did not happen"
        time.sleep(0.01)


def test_the_gil_is_released():
    """This thread counts while another one is in a call that takes 0.5 s."""
    ps = rowraft.connect("127.0.0.1:1", timeout=0.5)
    ended = threading.Event()

    def call() -> None:
        with contextlib.suppress(rowraft.Error):
            ps.table("x")
        ended.set()

    thread = threading.Thread(target=call)
    thread.start()
    n = 0
    while not ended.is_set():
        n += 1
    thread.join()
    assert n > 1000


def test_ctrl_c(cluster, name, request):
    """It interrupts a call that would wait for ever, and says what it knows of a push."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    dead = rowraft.connect("127.0.0.1:1", timeout=float("inf"))
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        dead.table("x")
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        _lib.call("sleep", seconds=100)
    assert not _lib._leaked
    with cluster.connect() as ps:  # everything works afterwards
        ps.create_table(name, 2).pull([1])


def test_a_signal_handler_may_wait_for_the_call_that_it_interrupts(request):
    f, ended = sleeping(1), []

    def handle(*_: object) -> None:
        f.result(timeout=10)
        ended.append(True)

    before = signal.signal(signal.SIGALRM, handle)
    request.addfinalizer(lambda: signal.signal(signal.SIGALRM, before))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    f.result()
    assert ended


def test_codes_are_those_of_the_go_client():
    for number, c in enumerate(_lib.call("codes")):
        code = rowraft.Code(number)
        assert code.name.replace("_", "").lower() == c["name"].lower()
        error = rowraft.errors.from_code(number, "text", c["maybe_applied"])
        assert (error.code, error.retryable) == (code, c["retryable"])
    assert len(rowraft.Code) == number + 1


def test_a_panic_is_an_error():
    with pytest.raises(rowraft.InternalError, match="panic: on request"):
        _lib.call("panic")


def test_close_leaves_nothing(cluster, name):
    with cluster.connect() as ps:
        ps.create_table(name, 4)

    def use() -> None:
        with cluster.connect() as ps:
            t = ps.table(name)
            t.push([1, 2], fill((2, 4)))
            next(iter(t.scan()))

    use()
    clients, goroutines, threads = counts()
    for _ in range(10):
        use()
    wait_until(lambda: counts()[1] <= goroutines)
    assert counts()[0] == clients
    assert counts()[2] <= threads + 8  # threads of the Go runtime, which it keeps and uses again


def counts() -> tuple[int, int, int]:
    r = _lib.call("runtime")
    return r["clients"], r["goroutines"], len(os.listdir("/proc/self/task"))


def test_calls_do_not_grow_the_process(ps, name):
    t = ps.create_table(name, 4)
    keys, out = np.arange(8), np.empty((8, 4), np.float32)

    def resident() -> int:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * 4096

    for _ in range(2000):
        t.pull(keys, out)
    before = resident()
    for _ in range(2000):
        t.pull(keys, out)
    assert resident() - before < 8 << 20
    assert _lib.call("runtime")["operations"] == 1  # that call


def test_keys_are_not_copied():
    for dtype in (np.uint64, np.int64):
        a = np.arange(5, dtype=dtype)
        assert np.shares_memory(_client._keys(a), a)
    assert _client._keys(np.arange(5, dtype=np.int32)).dtype == np.uint64
    assert _client._keys(np.arange(10)[::2]).tolist() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize(
    ("endpoints", "error", "names"),
    [
        (7070, TypeError, "endpoints: want .*got 7070"),
        ([7070], TypeError, "endpoints: want"),
        ("localhost", rowraft.InvalidArgumentError, "endpoints: 'localhost': want host:port"),
        ("http://ps0:7070", rowraft.InvalidArgumentError, "endpoints: 'http://ps0:7070'"),
        ("ps0:7070,ps1:x", rowraft.InvalidArgumentError, "endpoints: 'ps1:x'"),
    ],
)
def test_wrong_endpoints(endpoints, error, names):
    with pytest.raises(error, match=names):
        rowraft.connect(endpoints)
    assert rowraft.connect("[::1]:7070, ps0:7070")._endpoints == ["[::1]:7070", "ps0:7070"]


def test_a_client_says_that_it_waits(caplog, monkeypatch):
    monkeypatch.setattr(_client, "_SILENCE", 0.2)
    with pytest.raises(rowraft.Error, match="refused"):
        rowraft.connect("127.0.0.1:1", timeout=0.6).tables()
    assert ["no server answers" in r.message for r in caplog.records] == [True]


def test_certificates_are_missing(cluster):
    with pytest.raises(rowraft.Error, match="certs=DIRECTORY"):
        rowraft.connect(cluster.endpoints, timeout=0.5).tables()


def test_local_arguments():
    with pytest.raises(TypeError, match="n: want an int, got '3'"):
        rowraft.local("3")
    with pytest.raises(rowraft.InvalidArgumentError, match="shards: 0"):
        rowraft.local(1, shards=0)
    with rowraft.local(1) as c:
        assert repr(c) == f"<rowraft.LocalCluster {c.endpoints[0]}>"
    with pytest.raises(rowraft.ClosedError, match="the cluster is closed"):
        c.connect()
    assert repr(c).endswith(" closed>")
