"""The Python code of the documents runs as it stands."""

from __future__ import annotations

import pathlib
import re

import pytest


torch = pytest.importorskip("torch")

import rowraft.torch as rt  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(document: str) -> list[str]:
    """The code of the fenced blocks, behind empty lines: line numbers in a traceback are those of the document."""
    text = (ROOT / document).read_text()
    return ["\n" * text[: m.start(1)].count("\n") + m[1] for m in BLOCK.finditer(text)]


def run(document: str, names: dict) -> int:
    found = blocks(document)
    for code in found:
        exec(compile(code, str(ROOT / document), "exec"), names)
    return len(found)


def test_readme(capsys):
    assert run("python/README.md", {"__name__": "readme"}) == 2
    out = capsys.readouterr().out
    assert "servers up: ['n" in out and "step 100: loss" in out


def test_reference(ps):
    """docs/python.md assumes a client, a model and data, which every reader has."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.top = torch.nn.Linear(4 + 16, 1)

        def forward(self, dense, pooled):
            return self.top(torch.cat([dense, pooled["user_id"]], 1)).squeeze(1)

    model, loss_of = Model(), torch.nn.BCEWithLogitsLoss()
    ids = torch.arange(8)
    loader = [
        (torch.randn(8, 4), rt.KeyedJaggedTensor(["user_id"], ids, torch.ones_like(ids)), torch.rand(8))
        for _ in range(3)
    ]
    opt = torch.optim.Adam(model.parameters())
    assert run("docs/python.md", {"ps": ps, "model": model, "loss_of": loss_of, "opt": opt, "loader": loader}) == 1
    assert ps.table("user").pull_present(ids)[1].all()
    ps.drop_table("user")


def test_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("test_documents.ROOT", tmp_path)
    (tmp_path / "a.md").write_text("x\n```python\nn = 1\n```\n```\nno\n```\n```python\nn += 1\n")
    names = {}
    assert run("a.md", names) == 1 and names["n"] == 1
    (tmp_path / "a.md").write_text("x\n\n```python\nraise ValueError\n```\n")
    with pytest.raises(ValueError) as e:
        run("a.md", {})
    assert e.traceback[-1].lineno + 1 == 4
