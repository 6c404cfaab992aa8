"""How long `specc verify` takes, as whole processes: `python benchmarks/verify.py`."""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

from compile import seconds

from specc.paths import algorithm_names, algorithms_dir

SPECS = "from specc.compiler import compile_specs; from specc.verify import report, run, strategies"


def main() -> None:
    names = algorithm_names()
    paths = [str(algorithms_dir() / f"{name}.yaml") for name in names]
    print(f"{'python -c import torch':<32}{seconds([sys.executable, '-c', 'import torch'], 5):6.2f} s")
    print(f"{'all that it imports':<32}{seconds([sys.executable, '-c', SPECS], 5):6.2f} s")
    for name, path in zip(names, paths, strict=True):
        took = seconds([sys.executable, "-m", "specc", "verify", path], 3)
        print(f"{f'specc verify {name}':<32}{took:6.2f} s")
    took = seconds([sys.executable, "-m", "specc", "verify", *paths], 1)
    print(f"{f'specc verify, all {len(names)}':<32}{took:6.2f} s")


if __name__ == "__main__":
    main()
