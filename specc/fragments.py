"""Fragments: the Python modules under `templates/` that scripts are made of, read without running them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from specc.paths import templates_dir


@dataclass(frozen=True)
class Function:
    """The signature of a function of a fragment, which says what it needs by the names of its parameters."""

    name: str
    positional: tuple[str, ...]
    keyword_only: tuple[str, ...]
    fields: Mapping[str, str] = field(default_factory=dict)
    """of a function of the user's own: the field of the spec that each keyword-only parameter is"""

    def field_of(self, keyword: str) -> str:
        """The field that a keyword-only parameter is: of the same name, but for functions of the user's own."""
        return self.fields.get(keyword, keyword)


@dataclass(frozen=True)
class Fragment:
    """One module under `templates/`: what it imports, what it calls its things, and its code."""

    path: Path
    imports: tuple[str, ...]
    functions: dict[str, Function]
    code: str
    parts: tuple[str, ...] = ()
    """of a user's file: the single definitions, which other functions of the file may use as well"""


@cache
def read_fragment(folder: str, name: str) -> Fragment:
    """`templates/<folder>/<name>.py`; its imports of other fragments are left out, since a script holds them all."""
    path = templates_dir() / folder / f"{name}.py"
    text = path.read_text(encoding="utf-8")
    docstring, *body = ast.parse(text).body
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    kept = [ast.unparse(node) for node in imports if not (getattr(node, "module", None) or "").startswith("templates")]
    rest = [node for node in body if node not in imports]
    start = (imports[-1] if imports else docstring).end_lineno
    code = "".join(text.splitlines(keepends=True)[start:]) if rest else ""
    return Fragment(path, tuple(kept), dict(map(signature, filter(has_signature, rest))), code.strip("\n"))


def has_signature(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.ClassDef)


def signature(node: ast.stmt) -> tuple[str, Function]:
    """A function's parameters, or those that a class is made with."""
    assert isinstance(node, ast.FunctionDef | ast.ClassDef)
    made = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"]
    function = node if isinstance(node, ast.FunctionDef) else (made[0] if made else None)
    if function is None:
        return node.name, Function(node.name, (), ())
    positional = tuple(argument.arg for argument in function.args.args if argument.arg != "self")
    return node.name, Function(node.name, positional, tuple(argument.arg for argument in function.args.kwonlyargs))
