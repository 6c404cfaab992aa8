"""The verification of a script, by enumeration. The module can be called: `specc.verify("grpo")` is `specc.api.verify`.

A package and a function of one name would take each other's place, depending on what is imported first.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specc.compiler import Compiled
    from specc.verify.run import Verified


class Verification(ModuleType):
    """This package, as a function."""

    def __call__(self, spec: str | Path | Compiled, group_size: int | None = None, seed: int = 0) -> Verified:
        from specc.api import verify

        return verify(spec, group_size, seed)


sys.modules[__name__].__class__ = Verification
