"""Builds the wheel (PEP 517), with nothing but the standard library.

`make wheel` builds librowraft.so and the program rowraft into bin/wheel/lib and calls this. The wheel is of the same
bytes for the same files.
"""

from __future__ import annotations

import base64
import hashlib
import os
import pathlib
import re
import sys
import tomllib
import zipfile
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
LIB = HERE.parent / "bin" / "wheel" / "lib"
FILES = ("librowraft.so", "rowraft")

# librowraft.so has symbols of glibc 2.3.2 and older (capi/glibc.h); scripts/test-wheel.sh compares them with the tag.
TAG = "py3-none-manylinux_2_17_x86_64"


def version() -> str:
    """Return the version, from its one place."""
    text = (HERE / "rowraft" / "_version.py").read_text()
    found = re.search(r'__version__ = "([^"]+)"', text)
    assert found, "rowraft/_version.py has no version"
    return found[1]


def metadata() -> str:
    """Return the file METADATA."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {version()}",
        f"Summary: {project['description']}",
        f"License-Expression: {project['license']}",
        "License-File: LICENSE",
        f"Requires-Python: {project['requires-python']}",
        "Description-Content-Type: text/markdown",
    ]
    lines += [f"Requires-Dist: {d}" for d in project["dependencies"]]
    for extra, needs in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {d}; extra == "{extra}"' for d in needs]
    return "\n".join(lines) + "\n\n" + (HERE / "README.md").read_text()


def build_wheel(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Write the wheel and return its name."""
    missing = [f for f in FILES if not (LIB / f).exists()]
    if missing:
        raise SystemExit(f"{LIB} lacks {', '.join(missing)}: run `make wheel`")
    info = f"rowraft-{version()}.dist-info"
    contents = {
        str(p.relative_to(HERE)): p.read_bytes()
        for p in sorted((HERE / "rowraft").rglob("*"))
        if p.suffix == ".py" or p.name == "py.typed"
    }
    for f in FILES:
        contents[f"rowraft/lib/{f}"] = (LIB / f).read_bytes()
    contents[f"{info}/METADATA"] = metadata().encode()
    contents[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: rowraft\nRoot-Is-Purelib: false\nTag: {TAG}\n".encode()
    contents[f"{info}/licenses/LICENSE"] = (HERE.parent / "LICENSE").read_bytes()
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in contents.items())
    contents[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()

    name = f"rowraft-{version()}-{TAG}.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w", zipfile.ZIP_DEFLATED) as z:
        for path, data in contents.items():
            entry = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if path.startswith("rowraft/lib/") else 0o100644) << 16
            z.writestr(entry, data)
    return name


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    """Refuse: the wheel has compiled Go code."""
    raise SystemExit("rowraft has no source distribution: run `make wheel` in a checkout")


if __name__ == "__main__":
    path = os.path.join(sys.argv[1], build_wheel(sys.argv[1]))
    print(f"{path}: {os.path.getsize(path) / (1 << 20):.1f} MiB")
