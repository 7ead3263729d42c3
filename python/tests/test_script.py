"""examples/pytorch/ctr.py on three servers while leaders die: no push is lost, none is applied twice."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import time

import pytest

import rowraft
from rowraft import _lib

pytest.importorskip("torch")

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "examples" / "pytorch" / "ctr.py"
STEPS, EACH = 1500, 25  # as in the script


def pushed_fewer_times(cluster: rowraft.LocalCluster, n: int) -> int:
    """How many rows of the table were pushed less than n times since they were created."""
    binary = _lib.find("rowraft", "ROWRAFT_BINARY")
    done = subprocess.run(
        [binary, "table", "shrink", "user", "--count-below", str(n), "--dry-run", "--output", "json",
         "--endpoints", ",".join(cluster.endpoints), "--certs", cluster.certs],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return json.loads(done.stdout)["removed"]


def test_the_script(tmp_path):
    with rowraft.local(3) as cluster, cluster.connect() as ps:
        p = subprocess.Popen(
            [sys.executable, str(SCRIPT), ",".join(cluster.endpoints), cluster.certs, str(tmp_path)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            kills = 0
            while not any(t.name == "user" for t in ps.tables()):
                assert p.poll() is None, p.stdout.read()
                time.sleep(0.1)
            while p.poll() is None:
                time.sleep(0.5)
                leaders = [s.name for s in ps.servers() if s.leads]
                if leaders and p.poll() is None:
                    cluster.kill(leaders[kills % len(leaders)])
                    kills += 1
                    time.sleep(1)
                    cluster.restart(leaders[(kills - 1) % len(leaders)])
            out = p.stdout.read()
            assert p.returncode == 0, out
        finally:
            p.kill()
            p.communicate()
        assert kills >= 3
        assert f"{STEPS} steps" in out and "step 1000: loss" in out, out
        assert len(list(tmp_path.iterdir())) >= 2  # checkpoints
        # A row exists from the third push on, with count 1. Group g of the users is in each 2^g-th step.
        for group, period in enumerate((8, 4, 2, 1)):
            count = (STEPS + period - 1) // period - 2
            assert pushed_fewer_times(cluster, count) == EACH * group
            assert pushed_fewer_times(cluster, count + 1) == EACH * (group + 1)
