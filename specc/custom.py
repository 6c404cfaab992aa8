"""Functions of the user's own: read and checked, never run here, and put into the script as they are written.

A spec names one as `file.py::function`, the file from the spec's folder. What a function may look at it says by the
names of its parameters, as our own fragments do; a keyword-only number becomes an argument of the script. The script
stands alone, so what the function uses of its module goes with it, and it can import what scripts have: torch,
transformers, accelerate and the standard library.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import core_schema

from specc.fragments import Fragment, Function, signature
from specc.problems import Place, Problem, closest, shown
from specc.source import MAX_INT, Source
from specc.user_code import (
    Definition,
    Import,
    Module,
    bound_by,
    bound_name,
    bound_within,
    evaluated,
    first_line,
    own_nodes,
    part_of,
    position,
    read_module,
    refuse_here,
    refuse_in_file,
    target_of,
)

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler

    from specc.plan import Plan

REFERENCE = re.compile(r"(?P<file>.+\.py)::(?P<name>[^\W\d]\w*)")

IMPORTABLE = frozenset({"torch", "transformers", "accelerate"}) | sys.stdlib_module_names
"""what every machine that runs a script has"""


@dataclass(frozen=True)
class Number:
    """A keyword-only parameter of a user's function."""

    name: str
    type: type[int] | type[float]
    default: int | float | None


@dataclass(frozen=True)
class Bound:
    """A name that the script has from a user's file: of a definition, or of an import, with what it is `bound_to`."""

    name: str
    place: Place
    bound_to: str = ""


class UserFunction:
    """A function of a user's file, checked against what it is for.

    `reference` is how the spec writes it, and `text_hash` is of the whole file. `fragment` is what goes into the
    script; its `functions` has the function under the name of its interface. `summary` is the first line of its
    docstring. It is no dataclass, which pydantic would take apart where it copies a spec.
    """

    TAKES = "a function, file.py::name"

    def __init__(
        self,
        reference: str,
        source: Source,
        fragment: Fragment,
        *,
        numbers: tuple[Number, ...],
        bound: tuple[Bound, ...],
        summary: str,
    ) -> None:
        self.reference = reference
        self.source = source
        self.text_hash = hashlib.sha256(source.text.encode()).hexdigest()[:16]
        self.fragment = fragment
        self.numbers = numbers
        self.bound = bound
        self.summary = summary

    def __eq__(self, other: object) -> bool:
        mine = (self.reference, self.source.path, self.text_hash)
        return isinstance(other, UserFunction) and mine == (other.reference, other.source.path, other.text_hash)

    def __hash__(self) -> int:
        return hash((self.reference, self.text_hash))

    def __repr__(self) -> str:
        return f"UserFunction({self.reference!r})"

    def __str__(self) -> str:
        return self.reference

    @property
    def file(self) -> str:
        """The name of its file, without the folder."""
        return Path(self.source.path).name

    @property
    def name(self) -> str:
        return self.reference.rpartition("::")[2]

    @property
    def inputs(self) -> tuple[str, ...]:
        """What it asks for."""
        return next(iter(self.fragment.functions.values())).positional

    @property
    def called(self) -> str:
        """`median of mine.py`."""
        return f"{self.name} of {self.file}"

    @property
    def described(self) -> str:
        """The first line of its docstring, and where it is from."""
        return f"{self.summary or 'A function of the author'} ({self.called})"


@dataclass(frozen=True)
class Interface:
    """What a user's function is for: the name that the page calls it by, what it may ask for, and what it returns.

    As the annotation of a field it makes pydantic read the field as a `UserFunction`. A relative path starts from
    `context["folder"]` of the validation, or from the current folder.
    """

    called: str
    inputs: Mapping[str, str]
    """parameter -> its shape and meaning"""
    returns: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.with_info_plain_validator_function(
            lambda value, info: self.read(value, (info.context or {}).get("folder", Path())),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda value, info: str(value) if info.mode_is_json() else value, info_arg=True
            ),
        )

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string", "pattern": r"^.+\.py::.+$"}  # which letters a name has, JavaScript says otherwise

    def read(self, value: Any, folder: Path) -> UserFunction:
        """The function that a spec names; raises pydantic's error with what is wrong with it."""
        if isinstance(value, UserFunction):
            return value
        found = REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            refuse_here("custom-reference", f"{shown(value)} does not name a function of a file", WHERE, meant(value))
        file, name = found.group("file"), found.group("name")
        module = read_module(folder / file, file)
        function = module.function(name)
        if function is None:
            refuse_here("custom-missing", f"{file} has no function {shown(name)}", *module.instead(name, file))
        return Reader(self, module, function).read(value)

    @property
    def asked(self) -> str:
        return ", ".join(f"{name} ({meaning})" for name, meaning in self.inputs.items())


WHERE = "a function of yours is named by its file, from the spec's folder, and its name in it"


def meant(value: Any) -> str:
    """The reference that was probably meant."""
    text = str(value)
    if isinstance(value, str) and (found := re.fullmatch(r"(.+\.py):(\w+)", text)):
        return f"write {found.group(1)}::{found.group(2)}, with two colons"
    return "write file.py::function, e.g. my_functions.py::median"


# -------- a function --------


class Reader:
    """Checks one function, and collects what goes into the script."""

    def __init__(self, interface: Interface, module: Module, function: ast.FunctionDef) -> None:
        self.interface = interface
        self.module = module
        self.function = function
        self.problems: list[Problem] = []
        self.used: dict[str, Definition] = {}
        self.imports: dict[str, Bound] = {}
        self.said: set[str] = set()

    def read(self, reference: str) -> UserFunction:
        self.check_signature()
        for star in self.module.stars:
            self.note(
                star,
                "custom-depends",
                f"`{ast.unparse(star)}` may bind any name",
                "what goes into the script is found by the names in the function's text",
                f"import what is used by its name: from {'.' * star.level}{star.module or ''} import ...",
            )
        if self.function.name in self.module.depends:
            self.refuse_dependence(self.function.name)
        self.collect(self.function)
        if not self.problems:
            self.check_order()
        if self.problems:
            refuse_in_file(self.problems)
        name = self.function.name
        _, called = signature(self.function)
        fields = {keyword: f"{self.interface.called}.{keyword}" for keyword in called.keyword_only}
        return UserFunction(
            reference,
            self.module.source,
            Fragment(
                Path(self.module.source.path),
                tuple(sorted(self.imports)),
                {self.interface.called: Function(name, called.positional, called.keyword_only, fields)},
                "",
                tuple(self.text_of(node) for node in self.in_order()),
            ),
            numbers=tuple(self.numbers()),
            bound=tuple(self.bound()),
            summary=" ".join((ast.get_docstring(self.function) or "").partition("\n")[0].split()).rstrip("."),
        )

    def note(self, node: ast.AST, slug: str, what: str, why: str, help: str, length: int = 1) -> None:
        place = self.module.place(node, length)
        self.problems.append(Problem(slug, what, why, help, place, source=self.module.source))

    def in_order(self) -> list[Definition]:
        """The definitions that are used, as they stand in the file."""
        return sorted({id(node): node for node in (*self.used.values(), self.function)}.values(), key=position)

    def text_of(self, node: Definition) -> str:
        """The lines of a definition as they are written, with the comments right above it; of a line with several
        statements its own one."""
        source = self.module.source
        first, last = first_line(node), node.end_lineno or node.lineno
        lines = [source.line(number) for number in range(first, last + 1)]
        rest = lines[-1].encode()[node.end_col_offset :].decode()
        if rest.lstrip().startswith(";"):
            lines[-1] = lines[-1].removesuffix(rest)
        if first == node.lineno:
            lines[0] = lines[0].encode()[node.col_offset :].decode()
        while first > 1 and not node.col_offset and source.line(first - 1).startswith("#"):
            first -= 1
            lines.insert(0, source.line(first))
        return "\n".join(lines)

    # what it is called with

    def check_signature(self) -> None:
        given = self.function.args
        positional = [*given.posonlyargs, *given.args]
        defaults = [None] * (len(positional) - len(given.defaults)) + given.defaults
        for parameter, default in zip(positional, defaults, strict=True):
            if default is not None and parameter.arg not in self.interface.inputs:
                self.refuse_parameter(
                    parameter,
                    f"{shown(parameter.arg)} has a default and can be given by position",
                    "a number of the spec is keyword-only, so that it cannot be taken for one of the tensors",
                    f"put a * before it: *, {parameter.arg}: {'float' if default else 'int'} = ...",
                )
            elif parameter.arg not in self.interface.inputs:
                near = closest(parameter.arg, self.interface.inputs)
                self.refuse_parameter(
                    parameter,
                    f"there is nothing called {shown(parameter.arg)} to give to this function",
                    f"it can ask for {self.interface.asked}",
                    f"did you mean `{near}`?" if near else "name its parameters so, or put numbers after a *",
                )
        for extra in (given.vararg, given.kwarg):
            if extra is not None:
                self.refuse_parameter(
                    extra,
                    f"{shown(extra.arg)} takes any number of arguments",
                    "a function gets what it names: " + self.interface.asked,
                    "name the parameters",
                )
        for parameter, value in zip(given.kwonlyargs, given.kw_defaults, strict=True):
            if kind_of_number(parameter) is None:
                self.refuse_parameter(
                    parameter,
                    f"{shown(parameter.arg)} is not declared as a number",
                    "a keyword-only parameter becomes an argument of the script, whose type is read off its annotation",
                    f"write {parameter.arg}: float, or int, or put it before the * if it is a tensor",
                )
            elif value is not None and (number := number_of(value)) is None:
                self.refuse_parameter(
                    parameter,
                    f"the default of {shown(parameter.arg)} is not a number, or not a finite one",
                    "it becomes the default of an argument of the script",
                    "write a number, e.g. 0.5",
                )
            elif value is not None and kind_of_number(parameter) is int and isinstance(number, float):
                self.refuse_parameter(
                    parameter,
                    f"the default of {shown(parameter.arg)} is not a whole number",
                    "it is declared as int, and so is the argument of the script",
                    f"write {parameter.arg}: float = {number}, or {round(number)}",
                )
        if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own_nodes(self.function)):
            self.note(
                self.function,
                "custom-signature",
                f"{self.function.name} is a generator",
                f"it returns {self.interface.returns}",
                "return a tensor",
                len("def "),
            )

    def refuse_parameter(self, parameter: ast.arg, what: str, why: str, help: str) -> None:
        self.note(parameter, "custom-signature", what, why, help, len(parameter.arg))

    def numbers(self) -> Iterator[Number]:
        given = self.function.args
        for parameter, value in zip(given.kwonlyargs, given.kw_defaults, strict=True):
            kind = kind_of_number(parameter)
            assert kind is not None
            yield Number(parameter.arg, kind, None if value is None else number_of(value))

    def bound(self) -> Iterator[Bound]:
        """The names that go into the script."""
        for node in self.in_order():
            for name in bound_by(node):
                yield Bound(name, self.module.place(node))
        yield from self.imports.values()

    # what it uses

    def collect(self, node: Definition) -> None:
        """Follows the names in a definition to what the module defines and imports."""
        bound = set(bound_within(node))
        for inner in ast.walk(node):
            if isinstance(inner, Import):
                self.check_import(inner)
            elif isinstance(inner, ast.Global):
                self.said |= set(inner.names)
                self.note(
                    inner,
                    "custom-state",
                    f"`global {', '.join(inner.names)}` keeps something between calls",
                    "a checkpoint would not hold it, and the verdict is about a function of what it is given",
                    "return what is needed, or write an answer with a state of its own: specc --answers",
                    len("global"),
                )
            elif isinstance(inner, ast.Name):
                self.follow(inner, bound)

    def follow(self, name: ast.Name, bound: set[str]) -> None:
        word = name.id
        if word in self.module.depends and (word not in bound or word in self.module.definitions):
            self.refuse_dependence(word)
        if word in self.used or word == self.function.name:
            return
        if word in self.module.definitions:
            self.used[word] = self.module.definitions[word]
            self.collect(self.used[word])
        elif word in self.module.imports:
            for node, alias in self.module.imports[word]:
                if self.check_import(node):
                    statement = ast.unparse(part_of(node, alias))
                    self.imports[statement] = Bound(word, self.module.place(node), target_of(node, alias))
        elif word in UNSEEN_USES and word not in bound:
            self.note(
                name,
                "custom-depends",
                f"{shown(word)} reaches names that are not written here",
                "what goes into the script is found by the names in the function's text",
                "use what it reaches by its name",
                len(word),
            )
        elif word not in bound and word not in self.module.depends and not hasattr(builtins, word):
            near = closest(word, [*self.module.definitions, *self.module.imports, *bound])
            self.note(
                name,
                "custom-undefined-name",
                f"the name {shown(word)} is not defined in this file",
                "what a function uses goes into the script with it: functions, classes, constants and imports that "
                "stand by their names at the top level of its file",
                f"did you mean `{near}`?" if near else "define it, or import it by name",
                len(word),
            )

    def refuse_dependence(self, word: str) -> None:
        """Says, once, that a name means more than its definition."""
        if word in self.said:
            return
        self.said.add(word)
        node, (what, help) = self.module.depends[word]
        why = "of a file its definitions and imports go into the script, one for each name, and no other statement"
        self.note(node, "custom-depends", f"the name {shown(word)} {what}", why, help)

    def check_order(self) -> None:
        """Notes what a definition looks up when it is executed and the script has below it."""
        for node in self.in_order():
            within = set() if isinstance(node, ast.FunctionDef) else set(bound_within(node)) - set(bound_by(node))
            for name in evaluated(node):
                defined = self.module.definitions.get(name.id)
                if defined is None or name.id in within or not isinstance(name.ctx, ast.Load):
                    continue
                if position(defined) < position(node):
                    continue
                self.note(
                    name,
                    "custom-depends",
                    f"the name {shown(name.id)} has no meaning yet where it stands",
                    "it is looked up when this line is reached, also in an annotation, since `from __future__` stays "
                    f"behind, and {name.id} is not defined above it",
                    f"move the definition of {name.id} above it, or write an annotation as a text: '{name.id}'",
                    len(name.id),
                )

    def check_import(self, node: Import) -> bool:
        """Whether the script can import this; notes it where not."""
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        level = getattr(node, "level", 0)
        foreign = [name for name in names if level or name.split(".")[0] not in IMPORTABLE]
        if foreign:
            module = "." * level + foreign[0]
            self.note(
                node,
                "custom-import",
                f"{shown(module)} cannot be imported by the script",
                "a script stands alone on torch, transformers, accelerate and the standard library",
                f"copy what is used of {module} into this file" if level else "use torch, or copy what is used",
            )
        return not foreign


UNSEEN_USES = frozenset({"eval", "exec", "globals", "__import__"})
"""what reaches names that are not in a function's text"""


def kind_of_number(parameter: ast.arg) -> type[int] | type[float] | None:
    annotation = parameter.annotation
    name = annotation.id if isinstance(annotation, ast.Name) else getattr(annotation, "value", None)
    return {"int": int, "float": float}.get(str(name))


def number_of(node: ast.expr) -> int | float | None:
    """The number that is written there; None for anything else."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None
    return value if is_number(value) else None


def is_number(value: object) -> bool:
    """Whether an argument of a script can have it."""
    if isinstance(value, bool):
        return False
    return abs(value) <= MAX_INT if isinstance(value, int) else isinstance(value, float) and math.isfinite(value)


# -------- in a script --------


def names_taken(plan: Plan) -> list[Problem]:
    """Names that would mean two things in the script: in a user's file, and in the rest or in another file."""
    if not plan.own_functions:
        return []
    from specc.render import render

    beside = ast.parse(render(plan, "", "", own=False))
    found: dict[tuple[str, Place], Problem] = {}
    files: dict[str, str] = {}
    for function in plan.own_functions:
        for bound in function.bound:
            if bound.name in dir(builtins):
                owner = "Python's own functions"
            elif bound.bound_to and taken(beside, bound.name) == {bound.bound_to}:
                continue  # the same import
            elif taken(beside, bound.name):
                owner = "the script"
            elif files.setdefault(bound.name, function.source.path) != function.source.path and not bound.bound_to:
                owner = files[bound.name]
            else:
                continue
            found[function.source.path, bound.place] = Problem(
                "custom-name-taken",
                f"the name {shown(bound.name)} is one of {owner} already",
                "the function goes into the script with what it uses, under the names that these have in its file",
                f"import it under another name: ... as my_{bound.name}" if bound.bound_to else "rename it",
                bound.place,
                source=function.source,
            )
    return list(found.values())


def taken(script: ast.Module, name: str) -> set[str]:
    """What the rest of a script binds a name to where a user's function of this name would be seen: the target of
    imports, and "" for anything else."""
    found = set()
    for node in script.body:
        if isinstance(node, Import):
            found |= {target_of(node, alias) for alias in node.names if name == bound_name(alias)}
            continue
        if name in bound_by(node) or (name in calls_of(node) and name in bound_within(node)):
            found.add("")
    return found


def calls_of(node: ast.AST) -> Iterator[str]:
    """The names that are called as functions somewhere inside."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name):
            yield inner.func.id
