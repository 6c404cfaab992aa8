"""Hypothesis strategies: whole specs, drawn from the pydantic classes alone, and rollouts to run their scripts on.

Nothing here names an answer, so a new one is drawn as soon as its class exists.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count, product
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from hypothesis import assume
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from specc.answers import QUESTIONS, answers_to
from specc.answers.base import Answer, bounds_of
from specc.answers.custom import Own
from specc.custom import Interface, UserFunction, names_taken
from specc.load import findings_of
from specc.plan import Plan
from specc.problems import nested_block
from specc.render import render
from specc.spec import Sampling, Spec
from specc.verify.laws import Batch, make_batch
from specc.verify.laws import lengths_to_mask as lengths_to_mask
from specc.verify.script import Script, load_script

# Numbers as they occur in specs: bounds that a field does not declare itself.
SMALLEST, LARGEST = 0.05, 8.0

# Texts that would show in a script if they were anything else than text there.
TEXTS = ["\n", "", '"', '\'"""', "\\n", "{}{{ x }}", "%s # \r\n", "。"]

# The small sizes that the laws are checked at: bounds of B and T, and every G.
PROMPTS, GROUP_SIZES, TOKENS = (1, 3), (2, 3, 4, 1), (1, 4)


def number(kind: type, info: FieldInfo) -> st.SearchStrategy[Any]:
    """A number within the field's bounds, of a size at which it can be told from no number."""
    bounds = bounds_of(info)
    if kind is int:
        low = int(bounds.get("ge", bounds.get("gt", 0) + 1))
        high = int(bounds.get("le", bounds.get("lt", low + 7) if "lt" in bounds else low + 6))
        return st.integers(low, high)
    low = bounds.get("ge", bounds.get("gt", -LARGEST if not bounds else 0.0))
    high = bounds.get("le", bounds.get("lt", max(LARGEST, 2 * low)))
    margin = min(SMALLEST, (high - low) / 4)
    low, high = (low + margin if low >= 0 else low), (high - margin if "lt" in bounds else high)
    return st.floats(low, high).map(lambda x: round(x, 3)).filter(lambda x: low <= x <= high)


def value_of(annotation: Any, info: FieldInfo) -> st.SearchStrategy[Any]:
    """A value of the annotated type, as YAML would hold it."""
    origin, options = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return st.sampled_from(options)
    if origin in (Union, UnionType):
        present = [value_of(option, info) for option in options if option is not NoneType]
        return st.one_of(*[st.none()] * 2 * (NoneType in options), *present)
    if hasattr(annotation, "__metadata__"):
        return value_of(options[0], info)
    if annotation is NoneType:
        return st.none()
    if annotation is bool:
        return st.booleans()
    if annotation in (int, float):
        return number(annotation, info)
    if annotation is str:
        return st.sampled_from(TEXTS)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return block(annotation)
    raise NotImplementedError(f"no strategy for {annotation}")


OWN = Path(__file__).parent / "own_functions.py"

# Functions of an author's own for the interfaces, by the names that the page calls them by.
OWN_FUNCTIONS = {
    "baseline": ["group_mean", "leave_one_out", "shrunk", "median"],
    "normalize": ["group_std", "asymmetric"],
    "transform": ["squashed", "clipped", "longer_is_worse"],
    "token_weight": ["ones", "uncertain", "near_policy"],
    "loss": ["ppo", "reinforce", "smooth"],
}


def own(name: str) -> str:
    """A function of `own_functions.py`, as a spec in any folder names it."""
    return f"{OWN}::{name}"


def takes_own(annotation: Any) -> bool:
    """Whether a field takes a function of the author's own: which is drawn by `specs_with_own` alone."""
    found = nested_block(annotation)
    return found is not None and issubclass(found, Own)


@st.composite
def block(draw: st.DrawFn, cls: type[BaseModel]) -> dict[str, Any]:
    """The fields of a block; those that have a default are there or not."""
    drawn: dict[str, Any] = {}
    for name, info in cls.model_fields.items():
        if takes_own(info.annotation):
            continue
        if info.is_required() or draw(st.booleans()):
            value = draw(value_of(info.annotation, info))
            if value is not None:
                drawn[name] = value
    return drawn


@st.composite
def answers(draw: st.DrawFn, question: str, data: str, fixed: str | None = None) -> dict[str, Any]:
    """An answer to the question that goes with the kind of data."""
    name = fixed or draw(
        st.sampled_from(
            sorted(name for name, a in answers_to(question).items() if data in a.works_on and not issubclass(a, Own))
        )
    )
    cls = answers_to(question)[name]
    return {**draw(block(cls)), cls.discriminator: name}


# What answers go with: there are few on pairs, which take one draw in eight.
KINDS_OF_DATA = ("rollouts",) * 7 + ("pairs",)


@st.composite
def specs(draw: st.DrawFn, fixed: dict[str, str] | None = None) -> Spec:
    """A spec without errors: where one answer contradicts another, what the error points at is left out.

    `fixed` are answers by question, and the rule of `keep`, that are not up to chance.
    """
    fixed = fixed or {}
    kind = draw(st.sampled_from(KINDS_OF_DATA)) if not fixed else "rollouts"
    chosen = {question: draw(answers(question, kind, fixed.get(question))) for question in QUESTIONS}
    data: dict[str, Any] = {"name": "drawn", **chosen}
    data["sampling"] = {"group_size": draw(st.sampled_from(GROUP_SIZES)), "mask_truncated": draw(st.booleans())}
    data["sampling"]["minibatches"] = draw(st.integers(1, 2))
    for name in ("keep", "resample", "advantages_over"):
        if draw(st.booleans()):
            data["sampling"][name] = draw(value_of(Sampling.model_fields[name].annotation, Sampling.model_fields[name]))
    data["sampling"] = {name: value for name, value in data["sampling"].items() if value is not None}
    assert set(data["sampling"]) <= set(Sampling.model_fields)
    if "keep" in fixed:
        keep = {"max_variance": draw(st.integers(2, 3))} if fixed["keep"] == "max_variance" else fixed["keep"]
        data["sampling"] |= {"keep": keep, "group_size": draw(st.sampled_from([g for g in GROUP_SIZES if g > 1]))}
    return mended(data)


@st.composite
def specs_with_own(draw: st.DrawFn) -> Spec:
    """A spec with one function of the author's own or more, where it could have them."""
    spec = draw(specs().filter(lambda spec: spec.online))
    data = spec.model_dump(exclude_unset=True)
    places = draw(st.sets(st.sampled_from(sorted(OWN_FUNCTIONS)), min_size=1))
    for place in sorted(places):
        function = own(draw(st.sampled_from(OWN_FUNCTIONS[place])))
        if place in ("baseline", "normalize"):
            question = {"normalize": "normalization"}.get(place, place)
            data[question] = {QUESTIONS[question].discriminator: "custom", "function": function}
        else:
            data["reward" if place == "transform" else "objective"][place] = function
    try:
        found = mended(data)
    except ValidationError:  # a likelihood has no loss
        found = spec
    assume(Plan(found).own_functions and not names_taken(Plan(found)))
    return found


def mended(data: dict[str, Any]) -> Spec:
    """The spec, without what its errors point at."""
    spec = Spec.model_validate(data)
    while errors := [finding for finding in findings_of(spec) if not finding.warning]:
        less = without(data, errors[0].loc)
        assume(less is not None)
        spec = less
    return spec


def without(data: dict[str, Any], loc: tuple[str | int, ...]) -> Spec | None:
    """The spec without what is at this place, or without the block around it if that needs it; or None."""
    for end in range(len(loc), 1, -1):
        inside: Any = data
        for key in loc[: end - 1]:
            inside = inside.get(key, {})
        if inside.pop(loc[end - 1], None) is None:
            return None
        try:
            return Spec.model_validate(data)
        except ValidationError:
            continue
    return None


# Answers that go with almost every answer to the other questions, and others for what does not go with these.
BESIDE: dict[str, Any] = {
    "reward": {"source": "verifier"},
    "kl": {"placement": "none"},
    "baseline": {"source": "leave_one_out"},
    "normalization": {"scope": "none"},
    "objective": {"quantity": "sequence_advantage", "aggregation": "token_mean"},
    "sampling": {"group_size": 4},
}
PLAIN: dict[str, Any] = {**BESIDE, "baseline": {"source": "none"}}
OF_TOKENS = {"quantity": "token_advantage", "aggregation": "token_mean"}

CONTEXTS: list[dict[str, Any]] = [
    BESIDE,
    {**PLAIN, "sampling": {"group_size": 4, "keep": "best"}},
    {**BESIDE, "objective": OF_TOKENS},
    {**BESIDE, "objective": OF_TOKENS, "reward": {"source": "reward_model"}},
    {
        **PLAIN,
        "reward": {"source": "process_reward"},
        "objective": {"quantity": "token_advantage", "aggregation": "token_mean"},
    },
    {
        "reward": {"source": "preferences"},
        "kl": {"placement": "implicit"},
        "baseline": {"source": "pair"},
        "normalization": {"scope": "none"},
        "objective": {"quantity": "preference"},
    },
]


def choices(annotation: Any, info: FieldInfo, share: float) -> list[Any]:
    """Every choice that a field offers, None for "not there"; one example of a number, which grows with `share`."""
    origin, options = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return list(options)
    if origin in (Union, UnionType):
        return [c for option in options for c in ([None] if option is NoneType else choices(option, info, share))]
    if hasattr(annotation, "__metadata__"):
        return choices(options[0], info, share)
    if annotation is NoneType:
        return [None]
    if annotation is bool:
        return [False, True]
    if annotation in (int, float):
        return [example(annotation, info, share)]
    if annotation is str:
        return TEXTS[:1]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [] if issubclass(annotation, Own) else every_block(annotation)
    if annotation is UserFunction:
        (interface,) = (item for item in info.metadata if isinstance(item, Interface))
        return [own(OWN_FUNCTIONS[interface.called][0])]
    if origin is dict:
        return [{}]
    raise NotImplementedError(f"no choices for {annotation}")


def example(kind: type, info: FieldInfo, share: float) -> int | float:
    """A number strictly within the field's bounds where it is not a whole one."""
    bounds = bounds_of(info)
    low, high = bounds.get("ge", bounds.get("gt", 1)), bounds.get("le", bounds.get("lt", math.inf))
    return int(low + (low + 1 <= high)) if kind is int else low + min(1.0, high - low) * share


def every_block(cls: type[BaseModel]) -> list[dict[str, Any]]:
    """Every combination of the choices of a block, with one nested block at most that may be left out.

    Numbers increase in the order of the fields.
    """
    fields = list(cls.model_fields.items())
    offered = []
    for place, (_, info) in enumerate(fields):
        offered.append(choices(info.annotation, info, share=(place + 1) / (len(fields) + 2)))
        if not info.is_required() and number_type(info):
            offered[-1].append(None)
    return [
        {name: value for (name, _), value in zip(fields, chosen, strict=True) if value is not None}
        for chosen in product(*offered)
        if sum(isinstance(value, dict) and None in choice for value, choice in zip(chosen, offered, strict=True)) <= 1
    ]


def number_type(info: FieldInfo) -> bool:
    """Whether the field is a number that is always there, and so may be left to its default."""
    return info.annotation in (int, float)


def every_spec(answer: type[Answer]) -> list[Spec]:
    """Valid specs with every combination of the answer's choices, each in the first context that it goes with."""
    found = []
    for data in every_block(answer):
        for context in CONTEXTS:
            try:
                spec = Spec.model_validate({"name": "every", **context, answer.question: data})
            except ValidationError:
                continue
            if all(finding.warning for finding in findings_of(spec)):
                found.append(spec)
                break
    return found


numbers = count()


def as_sampled(script: Script) -> Script:
    """The script, to be enumerated on sequences of responses where their order decides which of equals are kept."""
    return replace(script, exchangeable=script.on_pairs or not script.breaks_ties)


def script_of(spec: Spec) -> Script:
    """The estimator of the spec's script, rendered and run without formatting it; as a module, `.module`."""
    plan = Plan(spec)
    return load_script(render(plan, "drawn.yaml", "0" * 16), f"drawn_script_{next(numbers)}", plan)


def batches(groups: tuple[int, ...] = GROUP_SIZES) -> st.SearchStrategy[Batch]:
    """Rollouts of every small size, with rewards of every kind."""
    return st.builds(
        make_batch,
        seed=st.integers(0, 10_000),
        prompts=st.integers(*PROMPTS),
        group=st.sampled_from(groups),
        tokens=st.integers(*TOKENS),
        spread=st.sampled_from([0.0, 0.1, 1.0]),
        kind=st.sampled_from(["real", "ties", "nan"]),
    )
