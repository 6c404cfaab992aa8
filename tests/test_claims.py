"""Every claim of `docs/claims.md` has the verdict that enumeration finds, and the page is what the checks print."""

from __future__ import annotations

import pytest
from claims import CLAIMS, PAGE, WORDS, Claim, page


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.text.rstrip("."))
def test_the_verdict_is_the_one_declared(claim: Claim) -> None:
    found, evidence = claim.check()
    assert found == claim.verdict, evidence
    assert claim.word in WORDS


def test_the_page_is_what_the_checks_print() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python tests/claims.py --write"
