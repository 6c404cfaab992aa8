"""A folder of one's own answers: what it adds to the language, and what is said when something in it is wrong.

Commands are run as processes of their own, since a class stays in the language for as long as a process runs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from pages import BLOCK

PAGE = (ROOT / "docs" / "own_answers.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## A folder of answers")[2].partition("\n## ")[0]


def specc(*words: str, folder: Path, code: int | None = 0, **environment: str) -> str:
    """What a command prints, stderr after stdout."""
    inherited = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, "-m", "specc", *words],
        cwd=folder,
        env=inherited | environment,
        capture_output=True,
        text=True,
    )
    assert code is None or done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of the page, where it says that they are."""
    for _, name, text in BLOCK.findall(SECTION):
        if name:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return tmp_path


CLASS, FRAGMENT = "answers/shrunk.py", "answers/baseline/shrunk.py"


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_the_answer_is_part_of_the_language(folder: Path) -> None:
    listed = specc("answers", "baseline", "--answers", "answers", folder=folder)
    assert "shrunk\n  The mean return of the other responses to the prompt, drawn towards" in listed
    assert "share [0.25]: a number above 0 and below 1\n      weight of the average of past batches" in listed
    assert "shrunk" in specc("answers", folder=folder, SPECC_ANSWERS="answers")
    script = specc("compile", "shrunk.yaml", "-o", "-", "--answers", "answers", folder=folder)
    assert (
        'baseline_share: Annotated[float, "> 0", "< 1"] = arg(0.6, "weight of the average of past batches")' in script
    )
    assert "baseline(returns_BG, scored_BG, rollouts.state, share=hp.baseline_share)" in script
    assert re.search(r"from shrunk\.yaml \(sha256 \w{16}; baseline/shrunk\.py, sha256 \w{16}\)", script)
    assert "verdict       unbiased: E[g] = grad E[R]" in script
    explained = specc("explain", "shrunk.yaml", "--answers", "answers", folder=folder)
    assert "baseline.share" in explained
    differing = specc("diff", "rloo", "shrunk.yaml", "--answers", "answers", folder=folder)
    assert re.search(r"baseline.source +leave_one_out +shrunk", differing)


def test_a_misspelt_answer_or_field_is_known(folder: Path) -> None:
    replace(folder / "shrunk.yaml", "share: 0.6", "shere: 0.6")
    assert "did you mean `share`?" in specc("compile", "shrunk.yaml", "--answers=answers", folder=folder, code=1)
    replace(folder / "shrunk.yaml", "{source: shrunk, shere: 0.6}", "schrunk")
    assert "did you mean `shrunk`?" in specc("compile", "shrunk.yaml", "--answers=answers", folder=folder, code=1)


def test_a_choice_without_effect_is_refused(folder: Path) -> None:
    """As in specc's own answers; one that picks a fragment is none."""
    replace(folder / CLASS, "    def own(", '    style: Literal["a", "b"] = "a"\n    """how"""\n\n    def own(')
    specc("compile", "shrunk.yaml", "--answers=answers", folder=folder)
    replace(folder / "shrunk.yaml", "share: 0.6", "style: b, share: 0.6")
    refused = specc("compile", "shrunk.yaml", "--answers=answers", folder=folder, code=1)
    assert refused.startswith("shrunk.yaml:5:35: error[dead-option]: style has no effect here")
    assert "the script is the same with b and a" in refused
    choice = (
        '    def fragments(self):\n        return ("shrunk" if self.style == "a" else "group_mean",)\n\n    def own('
    )
    replace(folder / CLASS, "    def own(", choice)
    refused = specc("compile", "shrunk.yaml", "--answers=answers", folder=folder, code=1)
    assert "error[dead-option]: share has no effect here" in refused and "style has" not in refused
    replace(folder / "shrunk.yaml", "style: b, share: 0.6", "style: b")
    specc("compile", "shrunk.yaml", "--answers=answers", folder=folder)


def test_without_the_option_nothing_is_run(folder: Path) -> None:
    replace(folder / CLASS, "from pydantic", "open('ran', 'w').close()\nfrom pydantic")
    assert "unknown-answer" in specc("compile", "shrunk.yaml", folder=folder, code=1)
    assert not (folder / "ran").exists()
    specc("compile", "shrunk.yaml", "--answers", "answers", folder=folder)
    assert (folder / "ran").exists()


def test_verify_agrees(folder: Path) -> None:
    printed = specc("verify", "shrunk.yaml", "--group-size=3", "--answers=answers", folder=folder)
    assert "The claim `unbiased` holds." in printed


def test_verify_finds_out_what_a_class_does_not_say(folder: Path) -> None:
    """Of a class without a rule of its own no verdict is derived, and no claim about it refuted before the run."""
    replace(folder / CLASS, 'return "0"', 'return "unknown"')
    printed = specc("verify", "shrunk.yaml", "--group-size=3", "--answers=answers", folder=folder, code=None)
    printed = " ".join(printed.split())
    assert "The claim `unbiased` holds." in printed
    assert "claim-refuted" not in printed and "What your class says of itself" not in printed
    explained = specc("explain", "shrunk.yaml", "--answers=answers", folder=folder)
    assert "not derived from the spec" in explained
    assert "nothing is known about the share of a response's own reward in shrunk" in explained


def test_shipped_specs_mean_what_they_meant(folder: Path) -> None:
    specc("compile", "rloo", "ppo", "dpo", "-o", "out/", "--answers", "answers", folder=folder)
    for name in ("rloo", "ppo", "dpo"):
        assert (folder / f"out/{name}.py").read_bytes() == (ROOT / f"generated/{name}.py").read_bytes()


def test_from_python(folder: Path) -> None:
    code = (
        "import specc\n"
        "[cls] = specc.load_answers('answers')\n"
        "assert specc.load_answers('answers/../answers') == [cls]\n"
        "print(cls.__name__, specc.load_spec('shrunk.yaml').spec.baseline.share)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.stdout == "Shrunk 0.6\n", done.stderr


def test_a_folder_can_be_mended_and_loaded_again(folder: Path) -> None:
    """In a session: what could not be loaded is no part of the language, and in nobody's way."""
    code = (
        "import specc, pathlib\n"
        "from specc.answers import answers_to\n"
        "for path, old, new in (\n"
        "    ('answers/baseline/shrunk.py', 'def baseline', 'def base'),\n"
        "    ('answers/shrunk.py', 'def own', 'x = nothing\\n    def own'),\n"
        "    ('answers/shrunk.py', 'class Shrunk', 'class A(GroupBaseline):\\n    pass\\nclass Shrunk'),\n"
        "):\n"
        "    file = pathlib.Path(path)\n"
        "    good = file.read_text()\n"
        "    file.write_text(good.replace(old, new))\n"
        "    try:\n"
        "        specc.load_answers('answers')\n"
        "    except specc.SpecError as error:\n"
        "        print(error.problems[0].what)\n"
        "    assert 'shrunk' not in answers_to('baseline')\n"
        "    file.write_text(good)\n"
        "specc.load_answers('answers')\n"
        "print(specc.compile_spec('shrunk.yaml').name)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "there is no function in it that a script calls",
        "NameError: name 'nothing' is not defined",
        "A has no name",
        "shrunk",
    ]


# --- what is wrong with a folder ---

OF_GONE = '    def fragments(self):\n        return ("gone",)\n\n    def own('
MASKED = "def masked_mean(x): ...\n\n\ndef update_baseline"

# What is changed in which file, the line of it that is named, and words of the message.
WRONG: dict[str, tuple[str, str, str, int | str, str]] = {
    "syntax": (CLASS, "def own(", "def own((", 22, "this is not Python: Function param"),
    "import": (CLASS, "class Shrunk(", "nothing\n\n\nclass Shrunk(", 11, "NameError: name 'nothing'"),
    "module": (CLASS, "from pydantic", "import nowhere\nfrom pydantic", 4, "No module named 'nowhere'"),
    "field without a type": (CLASS, "share: Annotated[float, Field(gt=0, lt=1)]", "share", "", "non-annotated"),
    "no docstring": (CLASS, '"""The mean return of', '"" + """The mean', 11, "has no docstring"),
    "no name": (CLASS, 'source: Literal["shrunk"] = "shrunk"', "other: int = 1", 11, "Shrunk has no name"),
    "name of any text": (CLASS, 'Literal["shrunk"]', "str", 11, "Shrunk has no name"),
    "no question": (CLASS, "(GroupBaseline)", "(Answer)", 11, "Shrunk answers no question"),
    "taken name": (CLASS, 'Literal["shrunk"] = "shrunk"', 'Literal["pair"] = "pair"', 11, "baseline: pair already"),
    "no fragment": (CLASS, "    def own(", OF_GONE, 11, "there is no file answers/baseline/gone.py"),
    "method": (CLASS, 'return "0"', "return 1 / 0", 23, "ZeroDivisionError: division by zero"),
    "fragment syntax": (FRAGMENT, "def baseline(", "def baseline((", 9, "this is not Python"),
    "fragment docstring": (FRAGMENT, '"""Baseline', '0 + 1\n"""Baseline', 1, "starts with a docstring"),
    "function": (FRAGMENT, "def baseline(", "def base_line(", 1, "no function in it that a script calls"),
    "parameter": (FRAGMENT, "Tensor, state", "Tensor, scores: Tensor, state", 9, "baseline takes scores, and"),
    "undefined name": (FRAGMENT, "(1 - share) *", "(1 - shore) *", 16, "shore is not defined"),
    "no field": (FRAGMENT, "*, share: float", "*, weight: float", 9, "no field of baseline: shrunk gives"),
    "no number": (FRAGMENT, ", *, decay: float", ", decay: float = 0.9", 19, "takes its number decay"),
    "name of the script's own": (FRAGMENT, "def update_baseline", MASKED, 19, "scripts have a masked_mean"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_a_folder_is_said_with_its_place(case: str, folder: Path) -> None:
    path, old, new, line, said = WRONG[case]
    replace(folder / path, old, new)
    if case == "no question":
        replace(folder / CLASS, "import Finding", "import Answer, Finding")
    printed = specc("compile", "shrunk.yaml", "-o", "-", "--answers", "answers", folder=folder, code=1)
    where, _, what = printed.partition(" error[own-answer]: ")
    named = CLASS if case == "no number" else path
    assert where.startswith(f"{named}:{line}") and len(where.splitlines()) == 1, printed
    assert said in what and "  why:  " in what and "  help: " in what, printed


def test_a_folder_without_an_answer(folder: Path) -> None:
    replace(folder / CLASS, "class Shrunk(GroupBaseline):", "class Shrunk:")
    printed = specc("answers", "--answers", "answers", folder=folder, code=1)
    assert printed.startswith("answers: error[own-answer]: there is no answer in the *.py files of this folder")


def test_a_fragment_does_not_take_the_place_of_a_shipped_one(folder: Path) -> None:
    (folder / "answers/baseline/greedy.py").write_text('"""Mine."""\n', encoding="utf-8")
    printed = specc("compile", "rloo", "--answers", "answers", folder=folder, code=1)
    assert (
        "answers/baseline/greedy.py:1:1: error[own-answer]: specc has a fragment baseline/greedy.py itself" in printed
    )


def test_a_folder_that_there_is_not(folder: Path) -> None:
    assert "there is no such folder" in specc("answers", "--answers", "gone", folder=folder, code=1)
    assert "this is not a folder" in specc("answers", "--answers", "shrunk.yaml", folder=folder, code=1)


@pytest.mark.parametrize("command", ["compile", "verify", "explain", "diff", "answers"])
def test_the_help_says_that_files_are_run(command: str, tmp_path: Path) -> None:
    said = " ".join(specc(command, "--help", folder=tmp_path).split())
    assert "Its Python files are run: name one that you trust. [env var: SPECC_ANSWERS]" in said
