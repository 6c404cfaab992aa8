"""The estimator of a generated script, as a module of its own.

What is run is the script's own text. Only the functions of the estimator interface and what they reach are executed,
with the imports that these need: a whole script would import transformers and accelerate, which takes longer than the
verification.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from specc.answers import answers_to
from specc.answers.base import VERDICTS
from specc.answers.objective import WIN_RATE
from specc.answers.reward import Reward
from specc.fragments import fragments_of
from specc.plan import Plan
from specc.problems import Problem, SpecError
from specc.render import INTERFACE, names_in
from specc.source import Source
from specc.user_code import bound_by
from specc.weights import slope_of

REQUIRED = ("Args", "Rollouts", "compute_advantages", "aggregation_weights", "policy_loss")

ON_PAIRS = ("Args", "preference_loss")
"""What a script on pairs defines in their place."""

CLAIM = re.compile(r"^ *claim +(\w+)(?:, for (.*?))?(?:, as the spec states it)?$", re.MULTILINE)
"""What a script says in its docstring about the claim of its spec."""


@dataclasses.dataclass(frozen=True, eq=False)
class Script:
    """The estimator of one script, and its spec's plan where that is known."""

    name: str
    module: ModuleType
    plan: Plan | None = None
    claim: str | None = None
    target: str | None = None
    """what the claim is about, where that is not E[R]"""
    past: int = 0
    """which of the environments of past steps its statistics are from"""
    exchangeable: bool = True
    """whether the order of a prompt's responses does not matter, so that groups can be counted as multisets"""

    @cached_property
    def hp(self) -> Any:
        """The script's arguments with their defaults."""
        return self.module.Args()

    def with_numbers(self, **changes: float) -> Any:
        """The arguments with other numbers; those that the script does not have are left out.

        A number that the script carries from step to step is no argument: it is set in the `state` of what is returned,
        which goes before that of the past steps.
        """
        known = {field.name for field in dataclasses.fields(self.hp)}
        hp = dataclasses.replace(self.hp, **{name: value for name, value in changes.items() if name in known})
        carried = {name: value for name, value in changes.items() if self.carries(name)}
        hp.state = {name: torch.tensor(value, dtype=torch.float64) for name, value in carried.items()}
        return hp

    def carries(self, number: str) -> bool:
        """Whether it is a number that past steps have moved, e.g. an adaptive `kl_coefficient`."""
        return self.has(f"{number}_of")

    def for_groups(self, hp: Any, size: int) -> Any:
        """The arguments for groups of another size: a script that would keep all of the group keeps half of it."""
        if getattr(hp, "max_variance", 0) < size:
            return hp
        fewer = dataclasses.replace(hp, max_variance=max(2, size // 2))
        fewer.state = getattr(hp, "state", {})
        return fewer

    @property
    def selects(self) -> bool:
        """Whether it leaves responses out."""
        return self.has("select") or self.has("select_after")

    @cached_property
    def breaks_ties(self) -> bool:
        """Whether it keeps some of several responses with equal rewards, so that their order decides which."""
        if not self.selects:
            return False
        select = getattr(self.module, "select", None) or self.module.select_after
        for reward in (0.0, 1.0):
            with self.running():
                prompts, chosen = select(torch.full((1, 4), reward), self.for_groups(self.hp, 4))
            if prompts.all() and len(set(chosen[chosen >= 0].tolist())) < 4:
                return True
        return False

    def has(self, function: str) -> bool:
        return hasattr(self.module, function)

    def loss_input(self, name: str, rollouts: Any, state: dict[str, Tensor]) -> Tensor | None:
        """A keyword-only tensor of `policy_loss`, as the trainer would give it; None where it is the models' to say.

        It is a number that is carried, or what the script's function of its name makes of the rollouts.
        """
        if self.carries(name):
            return state[name]
        if not self.has(name):
            return None
        function = getattr(self.module, name)
        made: Tensor = function(*(getattr(rollouts, parameter) for parameter in inspect.signature(function).parameters))
        return made.flatten(0, 1)

    def number(self, name: str, default: float) -> float:
        """One of the script's numeric arguments."""
        return float(getattr(self.hp, name, default))

    @property
    def on_pairs(self) -> bool:
        """Whether it learns from pairs of given responses, and not from rollouts."""
        return self.has("preference_loss")

    @property
    def knows_target(self) -> bool:
        """Whether a claim can be judged: one about E[R] or the win rate, or another target that is known here."""
        if self.on_pairs:
            return self.target in (None, WIN_RATE)
        return self.target is None or self.slope is not None

    @cached_property
    def reads(self) -> frozenset[str]:
        """The fields of `Rollouts` that the script's functions look at."""
        fields = {field.name for field in dataclasses.fields(self.module.Rollouts)}
        tree = ast.parse(self.module.__dict__["__source__"])
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        return frozenset(fields & used)

    @cached_property
    def weighs_tokens(self) -> bool:
        """Whether its loss has a weight of each token beside the ratio: a function of the author's own."""
        return re.search(r"objective = objective \* .+\.detach\(\)", self.module.__dict__["__source__"]) is not None

    @cached_property
    def own_normalization(self) -> bool:
        """Whether its advantages become what a function of the author's own makes of them."""
        ours = {name for each in ("baseline", "reward") for part in fragments_of(each) for name in part.functions}
        made = [
            node.value.func.id
            for node in ast.walk(ast.parse(self.module.__dict__["__source__"]))
            if isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) in ("advantages_BG", "advantages_BGT")
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Name)
        ]
        return not ours.issuperset(made)

    @cached_property
    def loss_inputs(self) -> tuple[str, ...]:
        """The keyword-only tensors that its `policy_loss` takes besides those of every script, e.g. `entropies`."""
        parameters = inspect.signature(self.module.policy_loss).parameters.values()
        return tuple(parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY)

    @property
    def scores_are_binary(self) -> bool:
        """Whether its rewards are usually 0 and 1, by the source of the reward that its arguments name."""
        sources = [answer for answer in answers_to(Reward.question).values() if issubclass(answer, Reward)]
        named = [s.scores_are_binary for s in sources if s.is_read_by(set(vars(self.hp)))]
        return bool(named) and all(named)

    @property
    def slope(self) -> Callable[[float], float] | None:
        """The weight of a prompt in its target, by its success rate."""
        return None if self.on_pairs else slope_of(self.target)

    @property
    def has_kl(self) -> bool:
        return hasattr(self.hp, "kl_coefficient") or self.carries("kl_coefficient")

    @property
    def reuses_batches(self) -> bool:
        """Whether a batch is used for more than one update, as the defaults of its arguments say."""
        return self.number("epochs", 1) * self.number("minibatches", 1) > 1

    @contextmanager
    def running(self) -> Iterator[None]:
        """Turns what the script's own code raises into a problem that says where."""
        try:
            yield
        except (Exception, SystemExit) as error:
            if isinstance(error, SpecError):
                raise
            frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == self.name]
            where = f"{frames[-1].name}, at line {frames[-1].lineno}," if frames else "a function of the script"
            raise SpecError(
                [
                    Problem(
                        "script-raises",
                        f"{where} does not fit the interface: {type(error).__name__}: {error}",
                        "the estimator is evaluated on every outcome of a small policy, all of them at once under "
                        "torch.func.vmap, so it may not branch on a tensor's value nor leave its shapes",
                        "compare the function with the one that specc compiles",
                        source=Source(self.name),
                    )
                ]
            ) from error


def rollouts_of(module: ModuleType, **given: Any) -> Any:
    """A script's `Rollouts`, from what it may look at; it has the fields that it does look at."""
    known = {field.name for field in dataclasses.fields(module.Rollouts)}
    return module.Rollouts(**{name: value for name, value in given.items() if name in known})


def load_script(text: str, name: str, plan: Plan | None = None, claim: str | None = None) -> Script:
    """The estimator in a script's text. `name` is its file, for errors.

    Raises `SpecError` where the text is not a script: what is missing, or what it imports that is not installed.
    """
    try:
        tree = ast.parse(text, name)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        where = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) and error.lineno else str(error)
        raise not_a_script(name, where, "the file is not valid Python") from None
    if (other := next((node for node in tree.body if not is_definition(node)), None)) is not None:
        why = "only imports, definitions and the `if __name__` guard are read, so what this does would not be verified"
        raise not_a_script(name, f"line {other.lineno} is a statement that is run when the file is imported", why)
    reached = estimator(tree)
    defined = {bound for node in reached.body for bound in bound_names(node)}
    required = ON_PAIRS if "preference_loss" in defined else REQUIRED
    if missing := [function for function in required if function not in defined]:
        why = f"a script that specc compiles defines {', '.join(required)}"
        raise not_a_script(name, f"there is no {' and no '.join(missing)} in it", why)
    digest = hashlib.sha256(f"{name}\n{text}".encode()).hexdigest()[:16]
    module = ModuleType(f"specc_script_{digest}")
    module.__dict__["__source__"] = ast.unparse(reached)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        exec(compile(reached, name, "exec"), module.__dict__)
        module.Args()
    except (Exception, SystemExit) as error:
        raise not_a_script(name, f"{type(error).__name__}: {error}", "its definitions cannot be executed") from error
    _, _, below_title = (ast.get_docstring(tree) or "").partition("\n")  # a title is free text
    stated = CLAIM.search(below_title)
    said, about = stated.groups() if stated else (None, None)
    if said is not None and said not in VERDICTS:
        raise not_a_script(name, f"it claims to be {said}", f"a claim is one of {', '.join(VERDICTS)}")
    target = plan.spec.target if plan is not None else about
    derived = plan is not None and plan.derived.known  # else nothing is to be expected of the script
    return Script(name, module, plan if derived else None, claim or said, target)


def read_script(path: Path) -> Script:
    """The estimator of a script's file, edited by hand or not."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise not_a_script(str(path), f"the file cannot be read: {why}", "a script is a Python file") from None
    return load_script(text, str(path))


def not_a_script(name: str, what: str, why: str) -> SpecError:
    help = "give a spec, or a script that specc compiled from one"
    return SpecError([Problem("not-a-script", what, why, help, source=Source(name))])


def estimator(tree: ast.Module) -> ast.Module:
    """The statements of a script that its estimator needs, imports included."""
    definitions: dict[str, list[ast.stmt]] = {}
    imports: list[ast.Import | ast.ImportFrom] = []
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.append(node)
        for name in bound_names(node):
            definitions.setdefault(name, []).append(node)
    todo = [name for name in (*INTERFACE, "Args", "count_clipped", "drop_truncated") if name in definitions]
    names: set[str] = set()
    while todo:
        if (name := todo.pop()) not in names:
            names.add(name)
            todo += [used for node in definitions.get(name, []) for used in names_in(node)]
    kept = [used_part(node, names) for node in imports]
    body = [*filter(None, kept), *(node for node in tree.body if names & set(bound_names(node)))]
    return ast.Module(body, type_ignores=[])


def is_definition(node: ast.stmt) -> bool:
    """Whether a statement of a module defines something, or does nothing when the module is imported."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return all(alias.name != "*" for alias in node.names)
    if isinstance(node, ast.If):  # the guard of main()
        return "__name__" in names_in(node.test)
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign | ast.Pass)


def bound_names(node: ast.stmt) -> list[str]:
    """The names that a definition of a module binds."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        in_targets = [inner.id for target in node.targets for inner in ast.walk(target) if isinstance(inner, ast.Name)]
        return [*in_targets, *bound_by(node.value)]  # by := within it
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def used_part(node: ast.Import | ast.ImportFrom, names: set[str]) -> ast.stmt | None:
    """The import of those names only that are used."""
    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        return node
    aliases = [alias for alias in node.names if (alias.asname or alias.name).split(".")[0] in names]
    if not aliases:
        return None
    part: ast.Import | ast.ImportFrom = ast.Import(aliases)
    if isinstance(node, ast.ImportFrom):
        part = ast.ImportFrom(node.module, aliases, node.level)
    return ast.copy_location(part, node)
