"""Rendered scripts to finished ones: imports sorted and those without use removed, formatted, by the pinned ruff."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

OPTIONS = ["--isolated", "--no-cache", "--quiet", "--line-length=120", "--target-version=py311"]


def finish(scripts: list[str]) -> list[str]:
    """The scripts as they are written to disk; one run of ruff for all of them."""
    with tempfile.TemporaryDirectory(prefix="specc-") as folder:
        paths = [Path(folder) / f"script_{number}.py" for number in range(len(scripts))]
        for path, script in zip(paths, scripts, strict=True):
            path.write_text(script, encoding="utf-8")
        ruff(["check", "--fix", "--select=F401,I", *OPTIONS[:3], *OPTIONS[3:], folder])
        ruff(["format", *OPTIONS, folder])
        return [path.read_text(encoding="utf-8") for path in paths]


def ruff(arguments: list[str]) -> None:
    """Runs ruff; its exit code is not 0 only where a template is wrong, which is a fault of ours."""
    from ruff import find_ruff_bin

    done = subprocess.run([find_ruff_bin(), *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"ruff {arguments[0]} failed on a rendered script:\n{done.stdout}{done.stderr}")
