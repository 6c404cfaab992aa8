"""Compiled pages, kept beside the templates as Python keeps compiled modules: in `__pycache__`, where that can be.

Compiling the page is a fifth of what `specc compile` takes. What is kept is used for the same bytes of a template, the
same options and the same versions of Python and Jinja alone; where nothing can be kept, all works without.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import sys
from collections.abc import Mapping
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import jinja2
from jinja2.bccache import Bucket


class PageCache(jinja2.BytecodeCache):
    """The compiled pages of the templates in a folder."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        self.folder = folder
        self.made_with = hashlib.sha256(f"{jinja2.__version__} {sorted(options.items())}".encode()).hexdigest()[:8]

    def path(self, bucket: Bucket) -> Path:
        """Where Python would keep a module of this name; `PYTHONPYCACHEPREFIX` is heeded."""
        return Path(cache_from_source(str(self.folder / f"page-{bucket.key[:8]}-{self.made_with}.py")))

    def load_bytecode(self, bucket: Bucket) -> None:
        try:
            bucket.load_bytecode(io.BytesIO(self.path(bucket).read_bytes()))
        except Exception:  # none, or not a whole one: it is made again
            bucket.reset()

    def dump_bytecode(self, bucket: Bucket) -> None:
        if sys.dont_write_bytecode:
            return
        path = self.path(bucket)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f"{path.name}.{os.getpid()}")
            try:
                temporary.write_bytes(bucket.bytecode_to_string())
                os.replace(temporary, path)  # whole or not at all
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
