"""fork, spawn, and systems on which the library does not load."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import rowraft
from rowraft import _lib


def in_fork(f) -> str:
    """Run f in a forked child and return what it returns."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            try:
                text = str(f())
            except BaseException as e:
                text = f"{type(e).__name__}: {e}"
            os.write(w, text.encode())
        finally:
            os._exit(0)
    os.close(w)
    with os.fdopen(r, "rb") as f:
        text = f.read().decode()
    os.waitpid(pid, 0)
    return text


def test_a_forked_child_is_refused(ps, name):
    t = ps.create_table(name, 4)
    for use in (lambda: t.pull([1]), lambda: ps.tables(), lambda: rowraft.connect("127.0.0.1:1").tables()):
        assert in_fork(use).startswith("ForkError: process")
    t.pull([1])  # the parent goes on


def test_close_in_a_forked_child(cluster):
    """It does nothing, also where a thread of the parent had the lock: the client is its parent's."""
    ps = cluster.connect()
    ps.tables()
    held, end = threading.Event(), threading.Event()

    def hold() -> None:
        with ps._lock:
            held.set()
            end.wait()

    def close() -> None:
        signal.alarm(10)
        ps.close()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = in_fork(close)
    end.set()
    thread.join()
    assert child == "None"
    assert isinstance(ps.tables(), list)
    ps.close()


def test_the_library_refuses_a_fork_by_itself(ps):
    """Whoever forks without Python's knowledge gets an error, too, and no hang."""
    ps.tables()

    def use() -> int:
        st = _lib.Status()
        _lib._library.rowraft_wait(1, -1, st)
        assert st.state == 2
        return st.code

    assert in_fork(use) == "-1"


def test_a_fork_before_the_first_use(cluster):
    """Client and import survive a fork: parent and child each load the library."""
    script = f"""
import os, rowraft
ps = rowraft.connect({cluster.endpoints!r}, certs={cluster.certs!r})
pid = os.fork()
assert isinstance(ps.tables(), list)
ps.close()
if pid == 0:
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def worker(ps: rowraft.Client, table: rowraft.Table, key: int, out) -> None:
    table.push([key], np.ones((1, table.dim), np.float32))
    ps.flush()
    out.put(key)


def test_spawn(ps, name):
    t = ps.create_table(name, 4, optimizer=rowraft.Add(), init=rowraft.Zeros())
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    workers = [context.Process(target=worker, args=(ps, t, key, out)) for key in (1, 2)]
    for p in workers:
        p.start()
    assert {out.get(timeout=60) for _ in workers} == {1, 2}
    for p in workers:
        p.join()
        assert p.exitcode == 0
    assert (t.pull([1, 2]) == 1).all()


def test_musl_is_refused(monkeypatch):
    def confstr(name: str) -> str:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "confstr", confstr)
    with pytest.raises(rowraft.LibraryError, match="glibc"):
        _lib.check_libc()


def test_a_library_that_is_missing():
    script = "import rowraft; rowraft.connect('127.0.0.1:1').tables()"
    env = dict(os.environ, ROWRAFT_LIBRARY="/nowhere/librowraft.so")
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "LibraryError: /nowhere/librowraft.so does not load" in done.stderr


def test_a_client_that_was_not_closed_does_not_keep_python(cluster):
    script = f"import rowraft; ps = rowraft.connect({cluster.endpoints!r}, certs={cluster.certs!r}); ps.tables()"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_killed_python(tmp_path):
    """Its servers end with it, and the next cluster removes their data, but not that of a cluster in use."""
    script = "import rowraft, time; c = rowraft.local(1); print(c.servers[0].pid, flush=True); time.sleep(600)"
    env = dict(os.environ, TMPDIR=str(tmp_path))
    pids = []
    for _ in range(2):
        p = subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, text=True)
        pids.append(int(p.stdout.readline()))
        assert len(list(tmp_path.glob("rowraft-local-*"))) == 1
        p.kill()
        p.communicate()
    for _ in range(100):
        if not any(os.path.exists(f"/proc/{pid}") for pid in pids):
            break
        time.sleep(0.1)
    else:
        raise AssertionError("a server runs still")
    script = "import rowraft; a = rowraft.local(1); b = rowraft.local(1); a.connect().tables(); b.close(); a.close()"
    subprocess.run([sys.executable, "-c", script], env=env, check=True, timeout=60)
    assert not list(tmp_path.glob("rowraft-local-*"))


def test_the_command_line(cluster, ps, name):
    ps.create_table(name, 4)
    command = [sys.executable, "-m", "rowraft", "table", "list", "--certs", cluster.certs]
    done = subprocess.run([*command, "--endpoints", cluster.endpoints[0]], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and name in done.stdout, done.stderr
    assert subprocess.run([*command, "--no-such-flag"], capture_output=True, timeout=60).returncode == 2
