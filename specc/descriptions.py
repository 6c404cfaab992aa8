"""The strings below the fields of a class, as the descriptions of these fields.

pydantic can read them, too (`use_attribute_docstrings`), by parsing the text of each class anew. Here a file is parsed
once for all of its classes, since that is a good part of what `specc compile` takes.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
from collections.abc import Iterator
from functools import cache

from pydantic import BaseModel


def describe_fields(cls: type[BaseModel]) -> None:
    """Gives each field that the class itself declares the description that stands below it."""
    module = sys.modules.get(cls.__module__)
    found = descriptions(getattr(module, "__file__", None) or "").get(cls.__qualname__, {})
    for name in found.keys() & cls.model_fields.keys():
        if cls.model_fields[name].description is None:
            cls.model_fields[name].description = found[name]


@cache
def descriptions(path: str) -> dict[str, dict[str, str]]:
    """The strings below the fields of every class in a file, by the class's qualified name and the field."""
    linecache.checkcache(path)
    text = "".join(linecache.getlines(path))
    return {name: dict(described(node)) for name, node in classes(ast.parse(text).body)}


def classes(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.ClassDef]]:
    """The classes in these statements and in the classes and functions in them."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield prefix + node.name, node
            yield from classes(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from classes(node.body, f"{prefix}{node.name}.<locals>.")


def described(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in zip(node.body, node.body[1:], strict=False):
        is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
            text = ast.literal_eval(below.value)  # type: ignore[attr-defined]
            if isinstance(text, str):
                yield field.target.id, inspect.cleandoc(text)
