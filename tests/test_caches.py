"""What makes compiling quick changes nothing else: pages that are kept, scripts read in parts, field descriptions."""

from __future__ import annotations

import ast
import gc
import sys
from pathlib import Path

import jinja2
import pytest
from conftest import ALGORITHMS, ROOT
from pydantic import BaseModel, ConfigDict, Field

from specc import render
from specc.cli import without_collection
from specc.descriptions import describe_fields
from specc.page_cache import PageCache
from specc.render import parsed, prune, statements

# --- scripts in parts ---


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_script_in_parts_has_the_statements_of_the_whole(name: str) -> None:
    script = (ROOT / "generated" / f"{name}.py").read_text(encoding="utf-8")
    found = [
        statement._replace(
            span=tuple(above + line for line in statement.span),
            fields=tuple((field, (above + first, above + last)) for field, (first, last) in statement.fields),
        )
        for above, statement in statements(script)
    ]
    assert found == list(parsed(script))
    assert len(found) > 30


TEXT_WITH_GAPS = '''"""Two empty lines


def in_the_docstring(): are text.
"""
TABLE = """


gone = 1
"""


def main() -> None:
    print(kept)


kept = [
    1,



]


lost = 2
'''


def test_a_string_that_looks_like_the_end_of_a_definition_is_read_whole() -> None:
    left = ast.parse(prune(TEXT_WITH_GAPS + '\n\nif __name__ == "__main__":\n    main()\n'))
    assert [type(node).__name__ for node in left.body] == ["Expr", "FunctionDef", "Assign", "If"]


def test_what_is_not_python_is_not_hidden() -> None:
    with pytest.raises(SyntaxError):
        prune("def main():\n    return\n\n\ndef (:\n")


# --- pages ---


def environment(folder: Path, options: dict[str, bool]) -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(folder)
    return jinja2.Environment(loader=loader, bytecode_cache=PageCache(folder, options), **options)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    path = tmp_path / "page.j2"
    path.write_text("{% if x %}\n{{ x }}\n{% endif %}\n", encoding="utf-8")
    return path


def kept(page: Path) -> list[Path]:
    return sorted(page.parent.glob("__pycache__/*"))


def test_a_page_is_kept_and_made_anew_when_it_or_its_options_change(page: Path) -> None:
    plain, trimmed = {"trim_blocks": False}, {"trim_blocks": True}
    assert environment(page.parent, plain).get_template("page.j2").render(x=1) == "\n1\n"
    [first] = kept(page)
    before = first.read_bytes()
    assert environment(page.parent, plain).get_template("page.j2").render(x=1) == "\n1\n"
    assert environment(page.parent, trimmed).get_template("page.j2").render(x=1) == "1\n"
    assert first.read_bytes() == before and len(kept(page)) == 2
    page.write_text("other {{ x }}", encoding="utf-8")
    assert environment(page.parent, plain).get_template("page.j2").render(x=1) == "other 1"


def test_a_kept_page_is_used(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(page.parent, {}).get_template("page.j2")
    monkeypatch.setattr(jinja2.Environment, "compile", lambda *_, **__: pytest.fail("it was compiled again"))
    assert environment(page.parent, {}).get_template("page.j2").render(x=2) == "\n2\n"


@pytest.mark.parametrize("left", [b"", b"j2", b"nonsense", None])
def test_a_damaged_page_is_made_anew(page: Path, left: bytes | None) -> None:
    environment(page.parent, {}).get_template("page.j2")
    [path] = kept(page)
    path.write_bytes(path.read_bytes()[:-40] if left is None else left)
    assert environment(page.parent, {}).get_template("page.j2").render(x=3) == "\n3\n"


def test_nothing_is_kept_where_python_keeps_nothing(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert environment(page.parent, {}).get_template("page.j2").render(x=1) == "\n1\n"
    assert kept(page) == []


def test_a_page_is_kept_where_python_keeps_modules(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "elsewhere"))
    environment(page.parent, {}).get_template("page.j2")
    assert kept(page) == [] and list((tmp_path / "elsewhere").rglob("*.pyc"))


def test_a_folder_that_cannot_be_written_is_no_error(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "write_bytes", refuse)
    assert environment(page.parent, {}).get_template("page.j2").render(x=1) == "\n1\n"
    assert kept(page) == []


def test_every_option_of_the_page_is_in_the_name_that_it_is_kept_by() -> None:
    for name, value in render.OPTIONS.items():
        changed = render.OPTIONS | {name: not value}
        assert PageCache(Path(), changed).made_with != PageCache(Path(), render.OPTIONS).made_with


# --- descriptions ---


class Plain(BaseModel):
    documented: int = 0
    """what it is,
        over two lines"""
    bare: int = 1
    12  # noqa: B018  no text
    said: int = Field(2, description="said elsewhere")
    """not this"""
    last: int = 3


def test_a_string_below_a_field_is_its_description() -> None:
    class Read(BaseModel):
        model_config = ConfigDict(use_attribute_docstrings=True)

        documented: int = 0
        """what it is,
            over two lines"""
        bare: int = 1
        12  # noqa: B018  no text
        said: int = Field(2, description="said elsewhere")
        """not this"""
        last: int = 3

    describe_fields(Plain)
    found = {name: info.description for name, info in Plain.model_fields.items()}
    assert found == {name: info.description for name, info in Read.model_fields.items()}
    assert found["documented"] == "what it is,\nover two lines"


def test_of_a_class_in_a_function_too() -> None:
    class Inner(Plain):
        own: int = 0
        """its own"""

    describe_fields(Inner)
    assert Inner.model_fields["own"].description == "its own"
    assert Inner.model_fields["documented"].description == Plain.model_fields["documented"].description


# --- garbage ---


def test_collection_is_on_again_afterwards() -> None:
    assert gc.isenabled()
    with pytest.raises(KeyError), without_collection():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()
