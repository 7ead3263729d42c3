"""The examples run, and learn what they are for."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys

import pytest

import rowraft

pytest.importorskip("torch")

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "pytorch"


def run(script: str, *arguments: str) -> str:
    """Run a script as a user does and return what it prints."""
    command = [sys.executable, str(EXAMPLES / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def number(text: str, pattern: str) -> float:
    found = re.search(pattern, text)
    assert found, text
    return float(found[1].replace(",", ""))


@pytest.fixture
def servers(cluster: rowraft.LocalCluster) -> list[str]:
    return ["--servers", ",".join(cluster.endpoints), "--certs", cluster.certs]


def test_dlrm(servers):
    out = run("dlrm.py", *servers, "--examples", "60000", "--batch", "400")
    assert number(out, r"step 100: loss (\S+)") < 0.66
    learned, best = number(out, r"AUC (\S+) on 12,000 held-out"), number(out, r"AUC (\S+) is the best")
    assert 0.62 < learned < best < 0.85
    assert number(out, r"the table has (\S+) rows") > 20_000


def test_dlrm_reads_a_file(servers, tmp_path):
    names = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
    lines = [[str(i % 2), "", *["1.5"] * 12, *[f"{i % 2}a"] * 25, ""] for i in range(100)]
    (tmp_path / "clicks.csv").write_text("\n".join(",".join(r) for r in [names, *lines]) + "\n")
    out = run("dlrm.py", *servers, "--data", str(tmp_path / "clicks.csv"), "--batch", "4", "--job", "file")
    assert number(out, r"AUC (\S+) on 20 held-out") == 1


def test_two_tower(servers):
    out = run("two_tower.py", *servers, "--users", "500", "--epochs", "2")
    assert number(out, r"recall@10 (\S+) on") > 3 * number(out, r"popular items: (\S+)")


def test_resume():
    out = run("resume.py")
    assert "the worker has ended with SIGKILL" in out
    assert "step 300" in out.split("SIGKILL")[0] and number(out.split("SIGKILL")[1], r": (\d+) steps are done") > 200
    assert number(out, r"step 600: loss (\S+)") < number(out, r"step 100: loss (\S+)") / 4


def test_notebook(capsys):
    """Its code cells run in their order, in one namespace."""
    cells = json.loads((EXAMPLES / "tour.ipynb").read_text())["cells"]
    code = [c for c in cells if c["cell_type"] == "code"]
    assert len(code) == 7 and not any(c["outputs"] or c["execution_count"] for c in code)
    names: dict = {"__name__": "tour"}
    for c in code:
        exec(compile("".join(c["source"]), f"tour.ipynb, cell {c['id']}", "exec"), names)
    out = capsys.readouterr().out
    assert "is dead: [-0.2" in out
    assert number(out, r"200 rows; (\d+)% of the five") > 80
