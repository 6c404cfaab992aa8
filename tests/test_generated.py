"""The generated scripts: the committed bytes, nothing that is not used, and no way in for a spec's strings."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path

import pytest
from conftest import ALGORITHMS, ON_PAIRS, ROOT
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from ruff import find_ruff_bin
from strategies import BESIDE, every_spec, specs

from specc.answers import QUESTIONS, answers_to
from specc.compiler import compile_spec, compile_specs
from specc.finish import finish
from specc.load import findings_of
from specc.plan import Plan
from specc.render import SECTIONS, render
from specc.spec import Spec

GENERATED = ROOT / "generated"

# The parameters of the estimator interface, the same for every spec, whether it needs them or not.
INTERFACE = {
    "compute_advantages": ["rollouts", "hp"],
    "update_state": ["rollouts", "hp"],
    "transform_rewards": ["rewards_BG", "ended_BG", "lengths_BG", "hp"],
    "select": ["rewards_BG", "hp"],
    "select_after": ["rewards_BG", "hp"],
    "aggregation_weights": ["mask_BGT", "hp"],
    "policy_loss": ["logprobs", "old_logprobs", "ref_logprobs", "advantages", "weights", "mask", "hp"],
    "compute_value_targets": ["rollouts", "hp"],
    "value_loss": ["values", "old_values", "returns", "weights", "mask", "hp"],
    "trains_policy": ["step", "hp"],
    "count_clipped": ["logprobs", "old_logprobs", "advantages", "mask", "hp"],
    "preference_loss": ["logprobs", "ref_logprobs", "weights", "mask", "hp"],
    "Scorer.__call__": ["self", "rows", "completions", "ended"],
    "StepScorer.__call__": ["self", "rows", "completions", "steps", "ended"],
}


@cache
def source(name: str) -> str:
    return (GENERATED / f"{name}.py").read_text(encoding="utf-8")


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(source(name))


@pytest.fixture(params=ALGORITHMS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


# -------- the committed bytes --------


def test_generated_is_what_the_compiler_writes() -> None:
    """Byte for byte, with no file too many; `specc compile` mends it."""
    compiled = compile_specs([ROOT / "algorithms" / f"{name}.yaml" for name in ALGORITHMS])
    written = {path.name: path.read_bytes() for path in GENERATED.iterdir() if path.name != "__pycache__"}
    assert written.keys() == {f"{each.name}.py" for each in compiled}
    assert not [each.name for each in compiled if written[f"{each.name}.py"] != each.script.encode()]


COMPILE_HERE = """
import json, sys
from specc.compiler import compile_specs
scripts = [each.script for each in compile_specs(sys.argv[1:])]
heavy = [name for name in ("torch", "transformers", "accelerate") if name in sys.modules]
print(json.dumps([scripts, heavy]))
"""


def test_compiling_again_elsewhere_gives_the_same(tmp_path: Path) -> None:
    """In another process and folder, with other hashes, one at a time or together, and without importing torch."""
    files = [ROOT / "algorithms" / f"{name}.yaml" for name in ALGORITHMS]
    relative = [os.path.relpath(file, tmp_path) for file in files]
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE_HERE, *relative],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    scripts, heavy = json.loads(done.stdout)
    assert scripts == [source(name) for name in ALGORITHMS]
    assert heavy == []
    assert compile_spec(files[0]).script == source(ALGORITHMS[0])


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=" ".join)
def test_generated_is_lint_clean(command: list[str]) -> None:
    done = subprocess.run(
        [find_ruff_bin(), *command, "--no-cache", GENERATED], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@settings(
    max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)
@given(drawn=st.lists(specs(), min_size=4, max_size=4))
def test_drawn_specs_are_lint_clean(tmp_path_factory: pytest.TempPathFactory, drawn: list[Spec]) -> None:
    """Formatted, with no name undefined and none unused, by the project's own rules."""
    folder = tmp_path_factory.mktemp("drawn")
    for number, script in enumerate(finish([render(Plan(spec), "drawn.yaml", "0" * 16) for spec in drawn])):
        (folder / f"drawn_{number}.py").write_text(script, encoding="utf-8")
        nothing_unused(ast.parse(script))
    rules = ["--config", ROOT / "pyproject.toml", "--no-cache", folder]
    done = subprocess.run([find_ruff_bin(), "check", *rules], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_trace_of_the_template(name: str) -> None:
    for mark in ("jinja", "{{", "}}", "{%", "%}", "{#", "#}", "StrictUndefined"):
        assert mark not in source(name)
    assert "templates" not in {
        (node.module or "").split(".")[0] for node in ast.walk(tree(name)) if isinstance(node, ast.ImportFrom)
    }


IMPORT_ALL = """
import importlib.util, os, sys, torch
before = (torch.get_default_dtype(), torch.initial_seed(), torch.is_grad_enabled(), sorted(os.listdir(".")))
for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("script_" + os.path.basename(path)[:-3], path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
assert before == (torch.get_default_dtype(), torch.initial_seed(), torch.is_grad_enabled(), sorted(os.listdir(".")))
assert not [module for module in sys.modules if module.split(".")[0] in ("specc", "templates")]
"""


def test_importing_has_no_side_effect(tmp_path: Path) -> None:
    """Nothing is printed, written, seeded or set, and specc is not needed."""
    files = [str(GENERATED / f"{name}.py") for name in ALGORITHMS]
    done = subprocess.run(
        [sys.executable, "-W", "error::SyntaxWarning", "-B", "-c", IMPORT_ALL, *files],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_specc_is_never_imported(name: str) -> None:
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            assert not [module for module in modules if module.split(".")[0] == "specc"]


# -------- nothing that is not used --------


def loaded(node: ast.AST) -> set[str]:
    """The names that are read in a node, those in annotations that are strings aside."""
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load)}


def definitions(module: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """The functions, classes, constants and imports at the top of a module, by the name that each binds."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield (alias.asname or alias.name).split(".")[0], node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield ast.unparse(target), node


def functions(module: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.Lambda]]:
    """Every function, method and lambda with its qualified name."""
    for node in ast.iter_child_nodes(module):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if isinstance(node, ast.FunctionDef):
                yield prefix + node.name, node
            yield from functions(node, prefix + node.name + ".")
        else:
            if isinstance(node, ast.Lambda):
                yield f"{prefix}<lambda>", node
            yield from functions(node, prefix)


def parameters(function: ast.FunctionDef | ast.Lambda) -> list[str]:
    args = function.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))]
    return [argument.arg for argument in every]


def reads(module: ast.Module, owners: set[str] | None = None) -> set[str]:
    """The attributes that are read, of anything or of the variables of these names."""
    return {
        node.attr
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and (owners is None or (isinstance(node.value, ast.Name) and node.value.id in owners))
    }


def locals_unread(name: str, function: ast.FunctionDef | ast.Lambda) -> list[str]:
    """The variables that a function assigns and that neither it nor a function inside it reads."""
    stored = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return [f"{name}: {variable}" for variable in sorted(stored - loaded(function)) if variable.strip("_")]


def keywords_of_calls(module: ast.Module, called: str) -> set[str]:
    return {keyword.arg or "" for call in calls_by_name(module)[called] for keyword in call.keywords}


@lru_cache(maxsize=1)
def calls_by_name(module: ast.Module) -> dict[str, list[ast.Call]]:
    found = defaultdict(list)
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found[node.func.id].append(node)
    return found


def unused_in(module: ast.Module) -> list[str]:
    """What nothing reads: functions, classes, constants, imports, methods, fields, arguments, parameters, variables."""
    unused = []
    names = [(node, loaded(node)) for node in module.body]
    for name, node in definitions(module):
        unused += [] if any(name in read for other, read in names if other is not node) else [name]
    for name, function in functions(module):
        body = function.body if isinstance(function.body, list) else [function.body]
        read = set().union(*map(loaded, body))
        fixed = INTERFACE.get(name, ["self"] if "." in name else [])
        unused += [f"{name}({parameter})" for parameter in parameters(function) if parameter not in {*read, *fixed}]
        unused += locals_unread(name, function)
    attributes, arguments = reads(module), reads(module, {"args", "hp"})
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            fields = {ast.unparse(field.target) for field in node.body if isinstance(field, ast.AnnAssign)}
            read = arguments if node.name == "Args" else attributes
            unused += [f"{node.name}.{field}" for field in sorted(fields - read)]
            unused += [
                f"{node.name}({name})" for name in keywords_of_calls(module, node.name) - fields - {""} if fields
            ]
            methods = [item.name for item in node.body if isinstance(item, ast.FunctionDef)]
            called = attributes | {"forward"}  # which nn.Module calls
            unused += [f"{node.name}.{m}" for m in methods if m not in called and not m.startswith("__")]
    return unused


def nothing_unused(module: ast.Module) -> None:
    assert unused_in(module) == []


def test_everything_is_used(name: str) -> None:
    nothing_unused(tree(name))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def f(): return 1", ["f"]),
        ("import os\nos2 = 1", ["os", "os2"]),
        ("def f(a, b): return b\nf(1, 2)", ["f(a)"]),
        ("def f():\n    a = b = 1\n    return a\nf()", ["f: b"]),
        ("def f():\n    for i in (): pass\nf()", ["f: i"]),
        ("def f():\n    for _ in (): pass\nf()", []),
        ("class Args:\n    a: int\n    b: int\n\nargs = Args()\nargs.a, Args.b", ["Args.b"]),
        ("class A:\n    a: int = 0\n\nA(a=1, b=2).a", ["A(b)"]),
        ("class A:\n    def m(self): pass\n    def n(self): pass\n\nA().m()", ["A.n"]),
    ],
)
def test_the_search_finds_what_is_unused(code: str, said: list[str]) -> None:
    assert unused_in(ast.parse(code)) == said


def cover() -> list[Spec]:
    """Specs that have every fragment and every flag of the plan in each value that any choice of one answer gives."""
    seen: set[object] = set()
    chosen = []
    for question in QUESTIONS:
        for answer in answers_to(question).values():
            for spec in every_spec(answer):
                plan = Plan(spec)
                traits = {(question, name) for name in spec.answers[question].fragments()}
                traits |= {(flag, str(getattr(plan, flag))) for flag in FLAGS}
                if traits - seen:
                    seen |= traits
                    chosen.append(spec)
    for keep in ("mixed", "best", "positive", {"max_variance": 2}):
        for over in ("kept", "all"):
            sampling = {"group_size": 4, "keep": keep, "advantages_over": over}
            spec = Spec.model_validate({"name": "selecting", **BESIDE, "sampling": sampling})
            chosen += [spec] * all(finding.warning for finding in findings_of(spec))
    return chosen


FLAGS = [
    name for name, value in vars(Plan).items() if isinstance(value, property) and name not in ("parameters", "passes")
]


def test_a_cover_of_the_language_has_no_dead_code(tmp_path: Path) -> None:
    """By our own search, and by ruff's rules for what has no use and what is said twice."""
    specs = cover()
    scripts = finish([render(Plan(spec), "cover.yaml", "0" * 16) for spec in specs])
    dead = {number: found for number, script in enumerate(scripts) if (found := unused_in(ast.parse(script)))}
    assert {str(specs[number].answers): found for number, found in dead.items()} == {}
    for number, script in enumerate(scripts):
        (tmp_path / f"cover_{number}.py").write_text(script, encoding="utf-8")
    rules = ["--isolated", "--no-cache", "--line-length=120", "--target-version=py311"]
    select = "--select=F,ERA,B,SIM,RET,PIE,C4"
    done = subprocess.run(
        [find_ruff_bin(), "check", *rules, select, "--output-format=concise", tmp_path, GENERATED],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_function_of_the_sections_is_in_some_script() -> None:
    """What no script has is pruned from all of them, and so nobody would miss it."""
    written = {node.name for name in ALGORITHMS for node in tree(name).body if isinstance(node, DEFINITIONS)}
    for spec in cover():
        written |= {node.name for node in ast.parse(render(Plan(spec), "", "")).body if isinstance(node, DEFINITIONS)}
    paths = sorted((ROOT / "templates" / "sections").glob("*.py"))
    nodes = [node for path in paths for node in ast.parse(path.read_text(encoding="utf-8")).body]
    assert {node.name for node in nodes if isinstance(node, DEFINITIONS)} - written == set()


DEFINITIONS = (ast.FunctionDef, ast.ClassDef)


def test_the_interface_is_the_contract(name: str) -> None:
    found = dict(functions(tree(name)))
    for function, expected in INTERFACE.items():
        if function in found:
            extra = [argument.arg for argument in found[function].args.kwonlyargs]
            assert parameters(found[function]) == expected + extra
    online = ("compute_advantages", "aggregation_weights", "policy_loss")
    for function in ("train", "main", *(("preference_loss",) if name in ON_PAIRS else online)):
        assert function in found
    assert not found.keys() & set(online if name in ON_PAIRS else ("preference_loss",))


# -------- one text for one meaning --------


def fragments_of(folders: tuple[str, ...]) -> dict[str, list[str]]:
    """The definitions in the templates' folders, as they are parsed, by name."""
    found = defaultdict(list)
    for folder in folders:
        for path in sorted((ROOT / "templates" / folder).glob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    found[node.name].append(ast.dump(node))
    return found


def test_what_means_the_same_is_the_same() -> None:
    """Across scripts, functions of one name are one text; those of the answers are one of their fragments'."""
    folders = [path.name for path in (ROOT / "templates").iterdir() if path.is_dir() and path.name[0] not in "_."]
    answers, sections = fragments_of(tuple(set(folders) - {"sections"})), fragments_of(("sections",))
    page = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "templates").glob("*.j2")))
    specific = set(re.findall(r"^(?:def|class) (\w+)", page, re.MULTILINE)) - {"main"} | {"select", "select_after"}
    texts: dict[str, set[str]] = defaultdict(set)
    for name in ALGORITHMS:
        for node in tree(name).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                if node.name in answers:
                    assert ast.dump(node) in answers[node.name], f"{node.name} in {name}"
                elif node.name not in {*specific, "Args"}:
                    texts[node.name].add(ast.get_source_segment(source(name), node) or "")
                    assert node.name in {*sections, "main"}
                    # with its decorators, which are not in the source segment
                    assert node.name not in sections or ast.dump(node) in sections[node.name], node.name
    assert [name for name, versions in texts.items() if len(versions) > 1] == []


def test_the_five_questions_are_always_asked() -> None:
    titles = {
        name: [line for line in source(name).splitlines() if line.startswith("# -------- ") and line[11].isdigit()]
        for name in ALGORITHMS
    }
    first = titles[ALGORITHMS[0]]
    assert [line.split()[3].rstrip(":") for line in first] == list(QUESTIONS)
    assert all(lines == first for lines in titles.values())
    assert set(SECTIONS) == {path.stem for path in (ROOT / "templates" / "sections").glob("*.py")}


# -------- no way in --------

HARMLESS = {
    "name": "harmless",
    "title": "A title",
    "cite": "A citation",
    "claim": "biased",
    "target": "a target",
    "reward": "verifier",
    "kl": "none",
    "baseline": "none",
    "normalization": "none",
    "objective": {"quantity": "sequence_advantage", "aggregation": "token_mean"},
}

NASTY = [
    '"""; import os; os.system("true") #',
    'x"""\nimport os\n"""',
    "\\",
    '\\"""',
    '"',
    '""',
    'ends in a quote"',
    "'''",
    "{{ 7 * 7 }}{% for x in () %}{% endfor %}{# gone #}",
    "{% raw %}",
    "line\nbreak\r\nand\ttab\x00null\x0cfeed\u2028separator\u0085",
    "\\N{BULLET} \\x41 \\u0041 \\\n",
    "#!/bin/sh",
    "f'{1}' %s %(prog)s",
    "\u202eright to left",
]


@cache
def code_of(**strings: str) -> str:
    """The rendered script of the harmless spec with other strings, without its docstring."""
    return without_docstring(render(Plan(Spec.model_validate({**HARMLESS, **strings})), "harmless.yaml", "0" * 16))


def without_docstring(script: str) -> str:
    module = ast.parse(script)
    assert isinstance(module.body[0], ast.Expr) and isinstance(module.body[0].value, ast.Constant)
    first = next(token for token in tokenize.generate_tokens(io.StringIO(script).readline) if token.type != tokenize.NL)
    assert first.type == tokenize.STRING and first.string.startswith('"""') and first.string.endswith('"""')
    return ast.dump(ast.Module(module.body[1:], []))


def with_examples(test):
    for text in NASTY:
        test = example(title=text, cite=text[::-1] or "-", target=text)(test)
    return test


words = st.text(st.one_of(st.sampled_from("\"'\\{}%#\n\r; "), st.characters()), max_size=40)


@with_examples
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(title=words, cite=words, target=words)
def test_strings_stay_strings(title: str, cite: str, target: str) -> None:
    """Whatever a spec calls itself, its code is that of a harmless one."""
    assert code_of(title=title, cite=cite, target=target) == code_of()


@pytest.mark.parametrize("text", NASTY)
def test_the_name_of_the_file_stays_a_string(text: str) -> None:
    spec = Spec.model_validate(HARMLESS)
    assert without_docstring(render(Plan(spec), text, "0" * 16)) == code_of()


def test_through_a_file(tmp_path: Path) -> None:
    """The same by way of YAML and ruff: the title is read back from the docstring as it was written."""
    title = 'quote """ brace {{ x }} slash \\ end "'
    text = {**HARMLESS, "title": title}
    file = tmp_path / 'it\'s""".yaml'
    file.write_text(json.dumps(text), encoding="utf-8")
    script = compile_spec(file).script
    assert (ast.get_docstring(ast.parse(script)) or "").startswith(title)
    assert without_docstring(script) == without_docstring(
        finish([render(Plan(Spec.model_validate(HARMLESS)), "x", "0")])[0]
    )


@pytest.mark.parametrize("name", ['x"""; import os', "a b", "1a", "import", "", "é", "a-b", "../a", "a\n", "None"])
def test_a_name_is_an_identifier(name: str) -> None:
    with pytest.raises(ValidationError):
        Spec.model_validate({**HARMLESS, "name": name})
