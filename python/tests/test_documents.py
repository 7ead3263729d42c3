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


def run(document: str, code: str, names: dict) -> None:
    exec(compile(code, str(ROOT / document), "exec"), names)


def test_readme(capsys):
    found = blocks("python/README.md")
    assert len(found) == 2
    for code in found:
        run("python/README.md", code, {"__name__": "readme"})
    out = capsys.readouterr().out
    assert "servers up: ['n" in out and "step 100: loss" in out


class DLRM(torch.nn.Module):
    def __init__(self, emb=None, dense_in=13) -> None:
        super().__init__()
        self.emb = emb
        self.top = torch.nn.Linear(dense_in + 16, 1)

    def forward(self, dense, features):
        pooled = features if isinstance(features, rt.KeyedTensor) else self.emb(features)
        return self.top(torch.cat([dense, pooled["user_id"]], 1)).squeeze(1)


def test_reference(ps, tmp_path, monkeypatch):
    """docs/python.md assumes a client, a model and data, as a reader has, and a bucket: here it is a directory."""
    model, ids = DLRM(), torch.arange(8)
    loader = [
        (torch.randn(8, 13), rt.KeyedJaggedTensor(["user_id"], ids, lengths=torch.ones_like(ids)), torch.rand(8))
        for _ in range(3)
    ]
    names = {
        "torch": torch, "ps": ps, "DLRM": DLRM, "model": model, "loader": loader, "dense": loader[0][0], "ids": ids,
        "lengths": torch.ones_like(ids), "loss_of": torch.nn.BCEWithLogitsLoss(),
        "opt": torch.optim.Adam(model.parameters()),
    }  # fmt: skip
    monkeypatch.chdir(tmp_path)
    found = blocks("docs/python.md")
    assert len(found) >= 2
    for code in found:
        if "from embeddings import" in code:
            rt.export(model, "ctr-7")
            monkeypatch.syspath_prepend("ctr-7")
        run("docs/python.md", code.replace("s3://bucket", f"{tmp_path}/bucket"), names)
        model.emb = names["emb"]
    assert ps.table("user").pull_present(ids)[1].all()
    assert any((tmp_path / "bucket" / "ctr-7").iterdir())
    ps.drop_table("user")


def test_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("test_documents.ROOT", tmp_path)
    (tmp_path / "a.md").write_text("x\n```python\nn = 1\n```\n```\nno\n```\n\n```python\nraise ValueError\n```\n")
    first, second = blocks("a.md")
    run("a.md", first, names := {})
    assert names["n"] == 1
    with pytest.raises(ValueError) as e:
        run("a.md", second, {})
    assert e.traceback[-1].lineno + 1 == 10
