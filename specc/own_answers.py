"""A folder of the user's own answers: classes in `DIR/*.py` and fragments in `DIR/<question>/<name>.py`, as in specc.

Loading it runs the files at its top, as any import does. What is wrong with them is said like what is wrong with a
spec, with the place in their file.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from specc.answers import QUESTIONS
from specc.answers.base import WITHDRAWN, Answer, Block, Finding, leaves
from specc.descriptions import descriptions
from specc.finish import OPTIONS
from specc.fragments import FOLDERS, Fragment, Unreadable, fragments_of, read, read_fragment
from specc.paths import templates_dir, tidy
from specc.plan import Plan
from specc.problems import Place, Problem, SpecError, listed
from specc.render import render
from specc.source import Source
from specc.spec import Spec

SLUG = "own-answer"
"""of every problem with the files of such a folder"""

MODULES = "specc_own_answers_{}_"
"""before the name of a file, by the number of folders before it: the name of its module"""

LOADED: dict[Path, list[type[Answer]]] = {}


def load_answers(folder: Path | str) -> list[type[Answer]]:
    """Adds the answers in a folder to the language, for as long as this process runs, and returns their classes.

    It imports the `*.py` files at the top of the folder, so it runs their code. Raises `SpecError` with what is wrong
    in one of them, and leaves the language as it was. A folder that is loaded already is not loaded again.
    """
    path = Path(folder).resolve()
    if path in LOADED:
        return LOADED[path]
    if not path.is_dir():
        what = "this is not a folder" if path.exists() else "there is no such folder"
        why = "a folder of answers holds a class for each in *.py, and their fragments in folders for each question"
        raise SpecError([Problem(SLUG, what, why, "check the path", source=Source(str(folder)))])
    refuse_shadows(path)
    FOLDERS.append(path)
    read_fragment.cache_clear()
    found: list[type[Answer]] = []
    try:
        for file in sorted(path.glob("*.py")):
            found += classes_in(file)
        if not found:
            why = "a subclass of an answer's base class, e.g. specc.answers.baseline.Baseline, is one"
            blame(path, None, "there is no answer in the *.py files of this folder", why, "add one; see docs")
        Spec.model_rebuild(force=True)
        for cls in found:
            check_default(cls)
    except BaseException:
        FOLDERS.remove(path)
        withdraw()
        raise
    LOADED[path] = found
    return found


def withdraw() -> None:
    """Takes what a folder that could not be loaded has defined so far out of the language, so that it can be mended."""
    todo: list[type[Answer]] = [Answer]
    while todo:
        cls = todo.pop()
        todo += cls.__subclasses__()
        if cls.__module__.startswith(MODULES.format(len(LOADED))):
            WITHDRAWN.add(cls)
    for reader in (read_fragment, read, descriptions):
        reader.cache_clear()
    Spec.model_rebuild(force=True)


def blame(path: Path, line: int | str | None, what: str, why: str, help: str) -> NoReturn:
    """A problem of one of the user's files; `line` is its number, or the start of its text."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    source = Source(str(tidy(path)), text)
    if isinstance(line, str):
        lines = text.splitlines()
        line = next((n for n, each in enumerate(lines, start=1) if each.lstrip().startswith(line)), None)
    place = None
    if line is not None and line < len(source.line_starts) + 1:
        indent = len(source.line(line)) - len(source.line(line).lstrip())
        place = Place(line, indent + 1, max(1, len(source.line(line).strip())))
    raise SpecError([Problem(SLUG, what, why, help, place, source=source)])


def refuse_shadows(folder: Path) -> None:
    """A fragment of the user's with the name of a shipped one would change what shipped specs compile to."""
    for question in (*QUESTIONS, "sections", "sampling"):
        for path in sorted((folder / question).glob("*.py")):
            if (templates_dir() / question / path.name).is_file():
                what = f"specc has a fragment {question}/{path.name} itself"
                why = "two of one name, and every spec that uses it would have to mean one of them"
                blame(path, 1, what, why, "give it, and the answer, another name")


# --- the classes ---


def classes_in(path: Path) -> list[type[Answer]]:
    """The answers that a file defines, checked."""
    known = [cls for base in QUESTIONS.values() for cls in leaves(base)]
    module = imported(path)
    defined = [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__]
    for cls in defined:
        if issubclass(cls, Answer) and not issubclass(cls, tuple(QUESTIONS.values())):
            why = "an answer is a subclass of the base class of its question"
            bases = listed(f"{base.__name__}" for base in QUESTIONS.values())
            blame(path, f"class {cls.__name__}", f"{cls.__name__} answers no question", why, f"derive it from {bases}")
    mine = [cls for base in QUESTIONS.values() for cls in leaves(base) if cls.__module__ == module.__name__]
    for cls in mine:
        check_class(cls, path, [*known, *(other for other in mine if other is not cls)])
    for cls in defined:
        if issubclass(cls, Answer) and cls not in mine and not leaves(cls):
            word = cls.discriminator
            why = f"a spec chooses it by `{word}`, and the class has no field {word}"
            blame(path, f"class {cls.__name__}", f"{cls.__name__} has no name", why, field_of(cls))
    return mine


def field_of(cls: type[Answer]) -> str:
    return f'add `{cls.discriminator}: Literal["my_name"] = "my_name"`'


def imported(path: Path) -> Any:
    """The file as a module. Its name is in no package, so it is in nobody's way."""
    name = MODULES.format(len(LOADED)) + path.stem
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # pydantic and dataclasses look it up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise failure(error, path) from error
    return module


def failure(error: Exception, path: Path | None = None) -> SpecError:
    """What an exception in the user's code comes to, at the line of theirs where it was raised; or itself, if none."""
    if isinstance(error, SpecError):
        return error
    said = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    if isinstance(error, SyntaxError) and error.filename:
        path, line, said = Path(error.filename), error.lineno, f"this is not Python: {error.msg}"
    else:
        at = frame_of_theirs(error, path)
        path, line = at or (path, None)
    assert path is not None
    try:
        blame(path, line, said, "it was raised by this file, which `--answers` runs", "mend it, or leave the file out")
    except SpecError as found:
        return found


def frame_of_theirs(error: Exception, path: Path | None = None) -> tuple[Path, int | None] | None:
    """The innermost line of a user's file in an exception's traceback."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file == path or any(file.is_relative_to(folder) for folder in FOLDERS):
            return file, frame.lineno
    return None


def check_class(cls: type[Answer], path: Path, others: list[type[Answer]]) -> None:
    """Refuses a class that lacks what the language reads off a class."""
    line, word = f"class {cls.__name__}", cls.discriminator
    options = get_args(cls.model_fields[word].annotation)
    if get_origin(cls.model_fields[word].annotation) is not Literal or len(options) != 1 or not is_word(options[0]):
        why = f"the word that a spec writes for an answer is the one option of its field {word}, an identifier"
        blame(path, line, f"{cls.__name__} has no name", why, field_of(cls))
    name = cls.answer_name()
    if any(other.question == cls.question and other.answer_name() == name for other in others):
        why = f"a spec that says `{cls.question}: {name}` would have to mean one of them"
        blame(path, line, f"there is an answer {cls.question}: {name} already", why, "give it another name")
    if not (cls.__dict__.get("__doc__") or "").strip():
        why = "its first line is what `specc answers` and the script's docstring say about it"
        blame(path, line, f"{cls.__name__} has no docstring", why, "add one: a line that says what it is")


def is_word(word: object) -> bool:
    return isinstance(word, str) and word.isidentifier() and word.isascii()


# --- the fragments ---


def check_default(cls: type[Answer]) -> None:
    """Checks the fragments of an answer that needs no field: those of one with fields wait for a spec."""
    if any(info.is_required() and name != cls.discriminator for name, info in cls.model_fields.items()):
        return
    try:
        answer = cls.model_validate({cls.discriminator: cls.answer_name()})
        names = answer.fragments()
    except Exception as error:
        raise failure(error, file_of(cls)) from error
    fragments = [own_fragment(answer, name) for name in names]
    check_fragments(answer, fragments)
    check_numbers(answer, fragments)


def own_fragment(answer: Answer, name: str) -> Fragment:
    """A fragment of an answer of the user's, which may be one of specc's."""
    cls, path = type(answer), file_of(type(answer))
    try:
        return read_fragment(answer.question, name)
    except FileNotFoundError:
        where = tidy(path.parent) / answer.question / f"{name}.py"
        why = f"the answer {answer.name} is made of the fragment {name}, which is looked for there and in specc"
        blame(path, f"class {cls.__name__}", f"there is no file {where}", why, f"write it: def {answer.question}(...)")
    except Unreadable as error:
        blame(
            error.path, error.line, error.what, "a fragment is a Python module whose text goes into scripts", error.help
        )


def file_of(cls: type[Answer]) -> Path:
    return Path(str(sys.modules[cls.__module__].__file__))


def is_own(answer: Answer) -> bool:
    """Whether an answer is of a class of the user's."""
    return is_own_class(type(answer))


def check_fragments(answer: Answer, fragments: list[Fragment]) -> None:
    """Refuses fragments without a function that the page calls, and those that ask for a number that there is not."""
    cls = type(answer)
    own = [fragment for fragment in fragments if is_theirs(fragment.path)]
    functions = {name: f for fragment in fragments for name, f in fragment.functions.items()}
    called = called_by_the_page(answer.question)
    if own and called and not called & functions.keys():
        first = answer.question if answer.question in called else min(called)
        why = f"it defines none of what scripts call of their {answer.question}: {', '.join(sorted(called))}"
        blame(own[0].path, 1, "there is no function in it that a script calls", why, f"define {first}(...)")
    numbers = set(number_fields(cls))
    for fragment in own:
        for function in fragment.functions.values():
            for name in function.keyword_only:
                if name not in numbers:
                    why = f"keyword-only parameters are the numbers of the spec, and {cls.__name__} has no field {name}"
                    what = f"{function.name} takes {name}, which no field of {answer.question}: {answer.name} gives"
                    help = f"add `{name}: float` to {cls.__name__}, or put the parameter before the `*`"
                    blame(fragment.path, f"def {function.name}", what, why, help)


def check_numbers(answer: Answer, fragments: list[Fragment]) -> None:
    """Refuses a number that no function takes, be it one of a fragment that other choices pick."""
    cls, path = type(answer), file_of(type(answer))
    beside = [own_fragment(answer, file.stem) for file in sorted((path.parent / answer.question).glob("*.py"))]
    functions = [f for fragment in [*fragments, *beside] for f in fragment.functions.values()]
    taken = {name for function in functions for name in function.keyword_only}
    for parameter in answer.parameters():
        if parameter.field not in taken and not inherited(cls, parameter.field):
            what = f"no fragment of {answer.question}: {answer.name} takes its number {parameter.field}"
            why = "a number is handed to the keyword-only parameter of its name, and has no effect without one"
            help = f"add `*, {parameter.field}` to the parameters of a function, or remove the field"
            blame(path, f"{parameter.field}:", what, why, help)


def called_by_the_page(question: str) -> set[str]:
    """The functions of a question's fragments that the pages call, and the classes, which the plan names."""
    pages = "".join(page.read_text(encoding="utf-8") for page in sorted(templates_dir().glob("*.j2")))
    defined = {name for fragment in fragments_of(question) for name in fragment.functions}
    classes = {name for name in defined if name[0].isupper()}
    return classes or defined & set(re.findall(r'call\("(\w+)"', pages))


def inherited(cls: type[Answer], field: str) -> bool:
    """Whether a field is of a class of specc's, whose fragments take it, or say what is dead."""
    shipped = [base for base in cls.__mro__ if issubclass(base, Block) and not is_own_class(base)]
    return any(field in base.model_fields for base in shipped)


def is_own_class(cls: type[Block]) -> bool:
    return cls.__module__.startswith(MODULES.partition("{")[0])


def number_fields(block: type[Block]) -> Iterator[str]:
    """The names of all fields of a block and of the blocks in it."""
    from specc.problems import nested_block

    for name, info in block.model_fields.items():
        yield name
        if (inner := nested_block(info.annotation)) is not None:
            yield from number_fields(inner)


def is_theirs(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in FOLDERS)


# --- the script ---


def check_answers(plan: Plan) -> None:
    """Refuses what keeps the fragments of the user's answers from a script, before it is rendered."""
    for answer in plan.spec.answers.values():
        if is_own(answer):
            check_fragments(answer, [own_fragment(answer, name) for name in answer.fragments()])
    every = [fragment for fragments in plan.fragments.values() for fragment in fragments]
    if not any(is_theirs(fragment.path) for fragment in every):
        return
    sections = [read_fragment("sections", path.stem) for path in sorted((templates_dir() / "sections").glob("*.py"))]
    for fragment in filter(lambda each: is_theirs(each.path), every):
        for other in [*sections, *every]:
            if other.path != fragment.path and (both := other.functions.keys() & fragment.functions.keys()):
                name = min(both)
                why = f"{other.path.parent.name}/{other.path.name} defines it, and both are in the script"
                blame(fragment.path, f"def {name}", f"scripts have a {name} of their own", why, "give it another name")


def check_script(plan: Plan, script: str) -> None:
    """Refuses names in the user's fragments that nothing in the script defines."""
    own = [f for fragments in plan.fragments.values() for f in fragments if is_theirs(f.path)]
    if not own:
        return
    for name, line in undefined_names(script):
        for fragment in own:
            lines = [each.strip() for each in fragment.path.read_text(encoding="utf-8").splitlines()]
            if line in lines:
                why = "neither the fragment nor anything else in the script defines this name"
                blame(fragment.path, lines.index(line) + 1, f"{name} is not defined", why, "define it, or import it")
        for fragment in own:
            for function in fragment.functions.values():
                if name in function.positional:
                    what = f"{function.name} takes {name}, and the script has nothing of this name there"
                    why = "a function is given what it asks for by the names of its parameters"
                    names = ", ".join(sorted(given_to(function.name, fragment)))
                    help = f"shipped fragments ask for {names}" if names else "see the shipped fragments"
                    blame(fragment.path, f"def {function.name}", what, why, help)


def dead_choices(plan: Plan, script: str) -> Iterator[Finding]:
    """The choices that a spec makes in the user's answers and that change nothing: any other gives the same script."""
    for answer in filter(is_own, plan.spec.answers.values()):
        for name in sorted(answer.model_fields_set - {answer.discriminator}):
            options = choices_of(type(answer).model_fields[name].annotation)
            others = [option for option in options if option != getattr(answer, name)]
            changed = [answer.model_copy(update={name: option}) for option in others]
            specs = [plan.spec.model_copy(update={answer.question: other}) for other in changed]
            allowed = [spec for spec in specs if all(finding.warning for finding in spec.findings())]
            if allowed and all(code_of(render(Plan(spec), "", "")) == code_of(script) for spec in allowed):
                yield Finding(
                    "dead-option",
                    answer.at(name),
                    f"{name} has no effect here",
                    f"the script is the same with {listed(map(as_yaml, (getattr(answer, name), *others)), 'and')}",
                    f"remove {name}",
                )


def choices_of(annotation: Any) -> list[Any]:
    """The words or truth values that a field takes."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if annotation is bool:
        return [False, True]
    return [choice for arm in get_args(annotation) for choice in choices_of(arm)]


def as_yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def code_of(script: str) -> str:
    """A script without its docstring, its comments and how it is laid out."""
    _, *body = ast.parse(script).body
    return ast.dump(ast.Module(body, []))


def undefined_names(script: str) -> list[tuple[str, str]]:
    """The names in a script that nothing defines, by ruff, and the lines that they are on."""
    from ruff import find_ruff_bin

    command = [find_ruff_bin(), "check", "--select=F821", "--output-format=json", *OPTIONS, "-"]
    done = subprocess.run(command, input=script, capture_output=True, text=True, encoding="utf-8")
    found = [each for each in json.loads(done.stdout or "[]") if "`" in each["message"]]
    lines = script.splitlines()
    return [(each["message"].split("`")[1], lines[each["location"]["row"] - 1].strip()) for each in found]


def given_to(function: str, fragment: Fragment) -> set[str]:
    """What the shipped functions of this name ask for."""
    shipped = fragments_of(fragment.path.parent.name)
    return {name for each in shipped for f in each.functions.values() if f.name == function for name in f.positional}
