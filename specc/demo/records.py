"""Data files: JSON Lines, one flat record of strings a line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

Record = dict[str, str]


def write_records(path: Path, records: Iterable[Record]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def read_records(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
