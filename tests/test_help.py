"""Help and completion: every command has examples that run, and a shell completes what a user would type."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from conftest import ALGORITHMS

from specc.answers import QUESTIONS
from specc.cli import ORDER, main

SLOW = ("verify", "demo")
"""Commands whose examples are not run here: they enumerate outcomes, or build a model."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds what the examples speak of."""
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(main, ["new", "mine"])
    (tmp_path / "algorithms").mkdir()
    (tmp_path / "algorithms" / "mine.yaml").write_bytes((tmp_path / "mine.yaml").read_bytes())
    return tmp_path


def examples(command: click.Command) -> list[list[str]]:
    """The words of the lines below `Example:` that call specc."""
    _, found, told = (command.help or "").partition("Example")
    assert found, f"{command.name} has no example"
    return [shlex.split(line.split(">")[0])[1:] for line in told.splitlines() if line.strip().startswith("specc ")]


COMMANDS = [main, *main.commands.values()]


def test_the_commands_are_in_the_order_of_use() -> None:
    assert main.list_commands(click.Context(main)) == list(ORDER)
    assert set(ORDER) == set(main.commands)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_explains_each_option_and_gives_examples(command: click.Command) -> None:
    for parameter in command.params:
        assert not isinstance(parameter, click.Option) or parameter.help, f"{command.name} {parameter.name}"
    for words in examples(command):
        called = main.commands[words[0]] if command is main else command
        assert words[0] == called.name
        known = {name for parameter in called.params for name in parameter.opts}
        assert {word for word in words if re.match("--?[a-z]", word)} <= known | {"--help"}, words


RUNNABLE = [
    pytest.param(words, id=" ".join(words))
    for command in main.commands.values()
    for words in examples(command)
    if command.name not in SLOW
]


@pytest.mark.parametrize("words", RUNNABLE)
def test_an_example_runs(words: list[str], here: Path) -> None:
    if words[0] == "new":
        (here / "mine.yaml").unlink()
    given = [str(path) for word in words for path in ([word] if "*" not in word else sorted(here.glob(word)))]
    if "--check" in words:
        CliRunner().invoke(main, [word for word in given if word != "--check"])
    result = CliRunner().invoke(main, given)
    assert (result.exit_code, result.stderr) == (0, "") and result.stdout


def test_the_examples_of_the_whole_go_one_after_another() -> None:
    Path("mine.yaml").unlink()
    for words in examples(main):
        if words[0] != "verify":
            assert CliRunner().invoke(main, words).exit_code == 0, words
    assert Path("generated/mine.py").is_file()


# -------- Completion --------


def completed(*words: str) -> list[str]:
    """What a shell is offered for the last word."""
    *before, last = words
    return [item.value for item in ShellComplete(main, {}, "specc", "_SPECC_COMPLETE").get_completions(before, last)]


def test_commands_and_options_are_completed() -> None:
    assert completed("") == list(ORDER)
    assert completed("ver") == ["verify"]
    assert "--latex" in completed("explain", "--")


@pytest.mark.parametrize(
    "words", [["explain"], ["compile"], ["verify"], ["diff"], ["diff", "grpo"], ["new", "x", "--from"]]
)
def test_a_spec_is_completed_by_the_algorithms_and_the_files_here(words: list[str]) -> None:
    assert completed(*words, "") == [*ALGORITHMS, "mine.yaml"]
    assert completed(*words, "grpo") == [name for name in ALGORITHMS if name.startswith("grpo")]
    assert completed(*words, "mi") == ["mine.yaml"]


def test_a_path_is_left_to_the_shell() -> None:
    (item,) = ShellComplete(main, {}, "specc", "_SPECC_COMPLETE").get_completions(["explain"], "algorithms/m")
    assert (item.type, item.value) == ("file", "algorithms/m")


def test_questions_and_their_answers_are_completed() -> None:
    assert completed("answers", "") == [*QUESTIONS, "sampling", "defaults"]
    assert completed("answers", "b") == ["baseline"]
    assert completed("answers", "baseline", "gr") == ["group_mean", "greedy"]
    assert completed("answers", "sampling", "") == completed("answers", "no", "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0 and f"_SPECC_COMPLETE={shell}_complete" in result.stdout


def test_bash_completes_with_the_script(here: Path) -> None:
    """The script in a bash of its own, with `specc` on its path."""
    command = here / "bin" / "specc"
    command.parent.mkdir()
    call = "from specc.cli import main; main(prog_name='specc')"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{call}" "$@"\n')
    command.chmod(0o755)
    script = """
        eval "$(specc completion bash)"
        COMP_WORDS=(specc explain grp) COMP_CWORD=2
        _specc_completion specc
        echo "${COMPREPLY[@]}"
    """
    environment = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}"}
    environment["PYTHONPATH"] = str(Path(__file__).parent.parent)
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["grpo", "grpo_process"], done.stderr


# -------- The docs --------

PAGE = (Path(__file__).parent.parent / "docs" / "commands.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"```console\n\$ specc ([^\n|]*)[^\n]*\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("call", "output"), SHOWN)
def test_the_docs_show_what_is_printed(call: str, output: str, here: Path) -> None:
    for path in here.glob("*.*"):
        path.unlink()
    assert output in CliRunner().invoke(main, shlex.split(call)).stdout


def test_the_docs_show_every_command_they_are_about() -> None:
    assert {call.split()[0] for call, _ in SHOWN} == {"new", "answers", "explain"}
