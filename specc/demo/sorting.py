"""The task of the tiny demo: digit sorting, `4021=` -> `0124`, 3 or 4 digits, as fast to learn as to check."""

from __future__ import annotations

import random

from specc.demo.records import Record

LENGTHS = (3, 4, 4, 4)
"""Drawn from evenly. Two lengths, so that batches hold padding; short ones, so that a reward model of the policy's size
can learn to check a multiset of digits in seconds. With five digits it cannot, and reinforcement finds that out."""

TRAIN_SIZE = 2_400
HELDOUT_SIZE = 200
SFT_SIZE = 12_000
SFT_SORTED = 0.33
"""Share of the supervised examples that are sorted; the others show the digits reversed. So the fine-tuned policy
sorts some of the time when it samples, seldom when it is greedy, and has something to learn by reinforcement."""


def sorting_records(seed: int) -> tuple[list[Record], list[Record]]:
    """Return the records of (train, held-out), columns `prompt` and `answer`; no digit string occurs twice."""
    rng = random.Random(seed)
    distinct: dict[str, None] = {}
    while len(distinct) < TRAIN_SIZE + HELDOUT_SIZE:
        distinct.setdefault(_digits(rng))
    records = [{"prompt": f"{digits}=", "answer": sort(digits)} for digits in distinct]
    return records[HELDOUT_SIZE:], records[:HELDOUT_SIZE]


def sft_records(seed: int, heldout: list[Record]) -> list[Record]:
    """Return examples of the mixed teacher, columns `prompt` and `completion`, none of them on a held-out prompt."""
    rng = random.Random(seed)
    asked = {record["prompt"] for record in heldout}
    records: list[Record] = []
    while len(records) < SFT_SIZE:
        digits = _digits(rng)
        completion = sort(digits) if rng.random() < SFT_SORTED else digits[::-1]
        if f"{digits}=" not in asked:
            records.append({"prompt": f"{digits}=", "completion": completion})
    return records


def sort(digits: str) -> str:
    return "".join(sorted(digits))


def _digits(rng: random.Random) -> str:
    return "".join(rng.choice("0123456789") for _ in range(rng.choice(LENGTHS)))
