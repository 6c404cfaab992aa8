"""Rendered scripts to finished ones: imports sorted and those without use removed, formatted, by the pinned ruff."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

OPTIONS = ["--isolated", "--no-cache", "--quiet", "--line-length=120", "--target-version=py311", "--config=src=[]"]
"""nothing but these decides: no configuration of the folder, and no module in it that is called like a package"""

CHECK = ["check", "--fix", "--exit-zero", "--select=F401,F811,I", *OPTIONS]
FORMAT = ["format", *OPTIONS]


def finish(scripts: list[str]) -> list[str]:
    """The scripts as they are written to disk; one run of ruff for all of them."""
    if len(scripts) == 1:  # without a file, so that nothing has to be writable
        return [ruff(FORMAT, ruff(CHECK, scripts[0]))]
    with tempfile.TemporaryDirectory(prefix="specc-") as folder:
        paths = [Path(folder) / f"script_{number}.py" for number in range(len(scripts))]
        for path, script in zip(paths, scripts, strict=True):
            path.write_text(script, encoding="utf-8", newline="\n")
        ruff([*CHECK, folder])
        ruff([*FORMAT, folder])
        return [path.read_bytes().decode() for path in paths]


def ruff(arguments: list[str], script: str | None = None) -> str:
    """Runs ruff, on a script or on files that the arguments name; its output.

    Its exit code is not 0 only where a template is wrong, which is a fault of ours.
    """
    from ruff import find_ruff_bin

    command = [find_ruff_bin(), *arguments, *["-"] * (script is not None)]
    done = subprocess.run(command, input=None if script is None else script.encode(), capture_output=True)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).decode("utf-8", "replace")
        raise RuntimeError(f"ruff {arguments[0]} failed on a rendered script:\n{said}")
    return done.stdout.decode()
