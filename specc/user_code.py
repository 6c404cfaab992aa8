"""A user's Python file as text: what its top level defines, imports and runs. Nothing of it is run here."""

from __future__ import annotations

import ast
import builtins
import errno
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from pydantic_core import PydanticCustomError

from specc.problems import Place, Problem, Says, closest
from specc.source import Source

MAX_BYTES = 1_000_000

Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign
Import = ast.Import | ast.ImportFrom


@dataclass(frozen=True)
class Module:
    """A user's file: its text and what its top level defines and imports."""

    source: Source
    definitions: dict[str, Definition]
    imports: dict[str, list[tuple[Import, ast.alias]]]
    """the imports that bind a name: several of one package and its modules"""
    depends: dict[str, tuple[ast.stmt, tuple[str, str]]]
    """names that mean more than one definition says: the statement that has a part in it, what it does, and the help"""
    stars: list[ast.ImportFrom]
    """`from x import *`, which may bind any name"""

    def function(self, name: str) -> ast.FunctionDef | None:
        node = self.definitions.get(name)
        return node if isinstance(node, ast.FunctionDef) else None

    def reached_by(self, statement: ast.stmt) -> set[str]:
        """What a statement may change: what it mentions, but functions, and the file's data that those mention."""
        reached = set(mentioned(statement))
        todo, functions = list(reached), set()
        while todo:
            name = todo.pop()
            if name not in functions and (function := self.function(name)) is not None:
                functions.add(name)
                inside = set(mentioned(function))
                reached |= inside & self.definitions.keys()
                todo += inside
        return reached - functions

    def instead(self, name: str, file: str) -> tuple[str, str]:
        """Why there is no such function, and what to write."""
        functions = [known for known, node in self.definitions.items() if isinstance(node, ast.FunctionDef)]
        why = f"its functions are {', '.join(functions)}" if functions else "it defines no function at its top level"
        if name in self.definitions or name in self.imports or name in self.depends:
            why = f"{name} is not defined by `def` there, and only a function's own text can go into the script"
        near = closest(name, functions)
        return why, f"did you mean `{file}::{near}`?" if near else f"define it: def {name}(...)"

    def place(self, node: ast.AST, length: int = 1) -> Place:
        """Where a node begins, counted in characters."""
        line, offset = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        column = len(self.source.line(line).encode()[:offset].decode("utf-8", "ignore"))
        end = getattr(node, "end_col_offset", None) if getattr(node, "end_lineno", None) == line else None
        return Place(line, column + 1, max(length, (end or offset + length) - offset if length == 1 else length))


def read_module(path: Path, file: str) -> Module:
    """The file, parsed; errors about it as a file are at the place in the spec, and those of its syntax in it."""
    try:
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "it is a folder" if path.is_dir() else "it is no regular file")
        with path.open("rb") as opened:
            raw = opened.read(MAX_BYTES + 1)
        text = raw.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else reason
        beside = sorted(other.name for other in path.parent.glob("*.py") if other.is_file() and other != path)
        near = closest(path.name, beside, cutoff=0.8)
        help = f"did you mean `{Path(file).parent / near}`?" if near else "check the path; it is from the spec's folder"
        refuse_here("custom-unreadable", f"{file} cannot be read", f"the system says: {reason}", help)
    if len(raw) > MAX_BYTES:
        refuse_here("custom-unreadable", f"{file} is larger than 1 MB", "a function takes a page", "name another file")
    source = Source(os.path.normpath(path), text)
    try:
        with warnings.catch_warnings():  # of what is odd in a file, Python itself tells where it is run
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
            compile(text, file, "exec", dont_inherit=True)  # finds what the grammar allows, e.g. a `return` outside
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line, column = (getattr(error, name, None) or 1 for name in ("lineno", "offset"))
        line = min(line, len(source.line_starts))
        says = Says("custom-syntax", "this is not valid Python", getattr(error, "msg", None) or str(error), "mend it")
        refuse_in_file([Problem(*says, Place(line, max(1, column), 1), source=source)])
    return module_of(source, tree)


def module_of(source: Source, tree: ast.Module) -> Module:
    """What the statements of a file do that are run when it is imported."""
    module = Module(source, {}, {}, {}, [])
    others = []
    for node in tree.body:
        if isinstance(node, Import):
            for alias in node.names if getattr(node, "module", None) != "__future__" else ():
                module.imports.setdefault(bound_name(alias), []).append((node, alias))
        elif isinstance(node, Definition):
            if is_stub(node):
                continue
            for name in bound_by(node):
                if name in module.definitions:
                    module.depends[name] = node, AGAIN
                module.definitions[name] = node
            module.depends.update(dict.fromkeys(changed_by(node), (node, CHANGED)))
        elif is_guard(node, "TYPE_CHECKING"):
            module.depends.update(dict.fromkeys(bound_by(node), (node, CHECKED)))
        elif not is_guard(node, "__name__") and not isinstance(node, ast.Assert):
            others.append(node)
    for node in others:
        bound = set(bound_by(node))
        module.depends.update(dict.fromkeys(bound, (node, BOUND)))
        for name in module.reached_by(node) - bound - set(dir(builtins)):
            module.depends.setdefault(name, (node, CHANGED))
    for name, bindings in module.imports.items():
        if name in module.definitions or len({target_of(*each) for each in bindings}) > 1:
            module.depends.setdefault(name, (bindings[-1][0], AGAIN))
    for inner in ast.walk(tree):
        if isinstance(inner, ast.Global):
            module.depends.update(dict.fromkeys(inner.names, (inner, BOUND)))
        elif isinstance(inner, ast.ImportFrom) and any(alias.name == "*" for alias in inner.names):
            module.stars.append(inner)
    return module


ONCE = "define it once: by one assignment, def, class or import at the top level"
AGAIN = "is bound a second time here", ONCE
BOUND = "is bound by a statement that does not go into the script", ONCE
CHECKED = "is there for type checkers only", "import it without the `if`: a script evaluates its annotations"
CHANGED = (
    "is used by a statement that does not go into the script and may change it",
    "let its definition make all of it; what only tries it out can go under `if __name__ == '__main__':`",
)


def refuse_in_file(problems: list[Problem]) -> NoReturn:
    """Errors with places in the user's file."""
    raise PydanticCustomError("user_function", "in the function's file", {"problems": problems})


def bound_by(node: ast.AST) -> Iterator[str]:
    """The names that a statement binds where it stands: those within functions, classes and lambdas are their own."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.comprehension):  # its target is its own, and what := binds in it is not
        yield from (name for part in (node.iter, *node.ifs) for name in bound_by(part))
    elif isinstance(node, Import):
        yield from map(bound_name, node.names)
    elif isinstance(node, ast.Name):
        yield from [node.id] * (not isinstance(node.ctx, ast.Load))
    elif not isinstance(node, ast.Lambda) and not (isinstance(node, ast.AnnAssign) and node.value is None):
        yield from named_by(node)
        for inner in ast.iter_child_nodes(node):
            yield from bound_by(inner)


def named_by(node: ast.AST) -> Iterator[str]:
    """The names that a node binds by its own text: of functions, classes, caught errors, patterns."""
    for field in ("name", "rest"):
        if isinstance(name := getattr(node, field, None), str) and not isinstance(node, ast.alias):
            yield name


def changed_by(node: Definition) -> Iterator[str]:
    """The names whose items or attributes a statement sets: `TABLE[0] = 1`, `Bounds.ABOVE = 2`."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    for target in targets:
        for inner in ast.walk(target) if target is not None else ():
            if isinstance(inner, ast.Attribute | ast.Subscript):
                yield from mentioned(inner.value)


def mentioned(node: ast.AST) -> Iterator[str]:
    return (inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name))


def is_guard(node: ast.stmt, word: str) -> bool:
    """Whether it is an `if` that is not taken when the file is imported, by `__name__` or `TYPE_CHECKING`."""
    if not isinstance(node, ast.If) or node.orelse:
        return False
    test = ast.unparse(node.test)
    return (
        test in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        if word == "TYPE_CHECKING"
        else (test in ("__name__ == '__main__'", "'__main__' == __name__"))
    )


def is_stub(node: Definition) -> bool:
    """Whether it is an overload, which only type checkers read."""
    return any(ast.unparse(each) in ("overload", "typing.overload") for each in getattr(node, "decorator_list", []))


def target_of(node: Import, alias: ast.alias) -> str:
    """What the name of an import is bound to: `torch` by `import torch.nn`, `torch.nn` by `from torch import nn`."""
    if isinstance(node, ast.ImportFrom):
        return f"{'.' * node.level}{node.module or ''}.{alias.name}"
    return alias.name if alias.asname else alias.name.split(".")[0]


def evaluated(node: ast.AST) -> Iterator[ast.Name]:
    """The names that are looked up when a definition is executed, and not only when it is called."""
    if isinstance(node, ast.Name):
        yield node
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        arguments = node.args
        every = (*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg)
        parts = [*arguments.defaults, *arguments.kw_defaults, *(each.annotation for each in every if each is not None)]
        if not isinstance(node, ast.Lambda):
            parts += [*node.decorator_list, node.returns]
        for part in parts:
            if part is not None:
                yield from evaluated(part)
    else:
        for inner in ast.iter_child_nodes(node):
            yield from evaluated(inner)


# -------- parts of it --------


def own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """What is in a function and in no other one within it."""
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            todo += ast.iter_child_nodes(node)


def first_line(node: Definition) -> int:
    """The first line of a definition, decorators included."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def position(node: Definition) -> tuple[int, int]:
    return first_line(node), node.col_offset


def bound_name(alias: ast.alias) -> str:
    """The name that an import binds."""
    return (alias.asname or alias.name).split(".")[0]


def part_of(node: Import, alias: ast.alias) -> ast.stmt:
    """The import of one name."""
    if isinstance(node, ast.Import):
        return ast.Import([alias])
    return ast.ImportFrom(node.module, [alias], node.level)


def bound_within(node: ast.AST) -> Iterator[str]:
    """The names that something inside a definition binds, wherever they count."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load):
            yield inner.id
        elif isinstance(inner, ast.arg):
            yield inner.arg
        elif isinstance(inner, Import):
            yield from map(bound_name, inner.names)
        else:
            yield from named_by(inner)


def refuse_here(slug: str, what: str, why: str, help: str) -> NoReturn:
    """An error at the place in the spec where the function is named."""
    raise PydanticCustomError("user_function", "{what}", {"what": what, "says": Says(slug, what, why, help)})
