"""The Python API, by the examples of its page; and what of the language is on its way out."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from conftest import ROOT
from pydantic import Field

import specc
from specc.answers import answers_to
from specc.answers.base import Block
from specc.deprecation import Deprecated, deprecations
from specc.load import check
from specc.problems import SpecError
from specc.source import parse
from specc.spec import Spec

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def test_the_page_shows_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    examples = re.findall(r"^```python\n(.*?)^```\n\n```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(examples) == PAGE.count("```python") == 4
    names: dict[str, Any] = {}
    for code, shown in examples:
        with redirect_stdout(io.StringIO()) as printed:
            exec(code, names)
        assert printed.getvalue() == shown


def test_the_page_names_what_there_is() -> None:
    assert {name for name in specc.__all__ if name != "__version__"} == {
        name for name in ("SpecError", "compile_spec", "load_answers", "load_spec", "verify") if f"{name}" in PAGE
    }
    assert dir(specc.verify("rloo", group_size=2)).count("holds") == 1


@pytest.mark.parametrize("first", ["import specc.verify.run", "import specc.api", "specc.compile_spec('rloo')", ""])
def test_verify_can_be_called_whatever_is_imported_first(first: str, tmp_path: Path) -> None:
    """The function has the name of the package that it is in."""
    code = f"import specc\n{first}\nprint(callable(specc.verify), specc.verify.__name__)\nfrom specc import verify\n"
    code += "assert verify is specc.verify\nimport specc.verify.report\nassert callable(specc.verify)\n"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout == "True specc.verify\n", done.stderr


def test_a_path_a_name_a_script_and_what_was_compiled(tmp_path: Path) -> None:
    text = (ROOT / "algorithms" / "rloo.yaml").read_text(encoding="utf-8")
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace("name: rloo", "name: mine"), encoding="utf-8")
    assert specc.load_spec(path).spec.name == specc.load_spec(str(path)).spec.name == "mine"
    assert specc.compile_spec("rloo").script == (ROOT / "generated" / "rloo.py").read_text(encoding="utf-8")
    found = [specc.verify(each, 2) for each in ("rloo", ROOT / "generated" / "rloo.py", specc.compile_spec(path))]
    assert {(each.verdict, each.holds, each.size) for each in found} == {("unbiased", True, 2)}
    assert [each.script.name for each in found][0::2] == ["rloo", "mine"]


def test_what_verify_refuses() -> None:
    with pytest.raises(ValueError, match="rloo needs at least 2 responses a prompt"):
        specc.verify("rloo", group_size=1)
    with pytest.raises(ValueError, match="pairs of responses, and no groups"):
        specc.verify("dpo", group_size=2)
    with pytest.raises(SpecError, match="not-a-script"):
        specc.verify("nowhere.py")
    with pytest.raises(SpecError, match="did you mean `rloo`"):
        specc.verify("rlo")


def test_a_claim_that_is_not_so(tmp_path: Path) -> None:
    text = (ROOT / "algorithms" / "rloo.yaml").read_text(encoding="utf-8")
    path = tmp_path / "mine.yaml"
    path.write_text(re.sub("(?m)^claim: .*$", "claim: biased", text), encoding="utf-8")
    verified = specc.verify(path, group_size=2)
    assert verified.claim_refuted and not verified.holds and verified.verdict == "unbiased"


# --- what is on its way out ---


class Old(Block):
    """A block that goes by way of `defaults` here."""

    rate: Annotated[float, Field(gt=0), Deprecated("write speed", since="0.2")] = 1.0
    """how fast"""
    mode: Annotated[Literal["new", "odd"], Deprecated("mode: new", since="0.3", word="odd")] = "new"
    """how"""


SPEC = """\
name: old
reward: verifier
kl: none
baseline: none
normalization: none
objective: {quantity: sequence_advantage, aggregation: token_mean}
"""


@pytest.fixture
def with_old(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Spec]]:
    """The language with a block of deprecated things in it."""

    class Longer(Spec):
        old: Annotated[Old, Field(default_factory=Old)]

    monkeypatch.setattr("specc.load.Spec", Longer)
    yield Longer


def warnings_of(text: str) -> list[tuple[str, int, str, str]]:
    return [(w.slug, w.place.line if w.place else 0, w.what, w.help) for w in check(parse(SPEC + text)).warnings]


def test_a_field_and_a_word_that_are_deprecated_work_and_warn(with_old: type[Spec]) -> None:
    assert warnings_of("") == warnings_of("old: {mode: new}\n") == []
    assert warnings_of("old:\n  rate: 2.0\n  mode: odd\n") == [
        ("deprecated", 9, "`old.mode: odd` is deprecated", "mode: new"),
        ("deprecated", 8, "`old.rate` is deprecated", "write speed"),
    ]
    assert warnings_of("old: {rate: 2.0}\naccept: [deprecated]\n") == []


def test_what_is_deprecated_is_struck_through_in_editors(with_old: type[Spec]) -> None:
    fields = with_old.model_json_schema()["$defs"]["Old"]["properties"]
    assert fields["rate"]["deprecated"] is True and fields["rate"]["exclusiveMinimum"] == 0
    assert "deprecated" not in fields["mode"]


def test_an_answer_that_is_deprecated_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Spec.model_validate(parse(SPEC).data)
    assert list(deprecations(spec)) == []
    mark = Deprecated("baseline: constant", since="0.2")
    monkeypatch.setattr(answers_to("baseline")["none"], "deprecated", mark, raising=False)
    [found] = deprecations(spec)
    assert (found.slug, found.loc, found.warning) == ("deprecated", ("baseline", "source"), True)
    assert found.what == "`baseline: none` is deprecated" and "since 0.2" in found.why
    assert found.help == "baseline: constant"
