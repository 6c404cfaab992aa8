"""The laws for scripts on pairs: those of `laws` that are about the loss alone, checked on its `preference_loss`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specc.verify.laws import (
    GARBAGE,
    LAWS,
    Broken,
    LawResult,
    NoSinglePrecision,
    arguments_read,
    close,
    described,
    lengths_to_mask,
    limits,
    need,
    other_values,
    zero,
)
from specc.verify.script import Script


class Pairs(NamedTuple):
    """Pairs as plain float64 tensors, with responses of every length from 0 on."""

    logprobs: Tensor  # [pairs, 2, T]
    ref_logprobs: Tensor
    weights: Tensor  # [pairs]
    mask: Tensor


Check = Callable[[Script, Pairs], None]


def make_pairs(seed: int, count: int, tokens: int) -> Pairs:
    generator = torch.Generator().manual_seed(seed)
    logprobs, ref_logprobs = (
        -torch.rand(count, 2, tokens, generator=generator, dtype=torch.float64) * 3 for _ in range(2)
    )
    lengths = torch.randint(0, tokens + 1, (count, 2), generator=generator)
    weights = torch.rand(count, generator=generator, dtype=torch.float64) + 0.1
    return Pairs(logprobs, ref_logprobs, weights, lengths_to_mask(lengths, tokens))


def loss_and_slope(script: Script, pairs: Pairs, hp: Any = None) -> tuple[Tensor, Tensor]:
    """The loss, and its gradient in the log-probs."""
    logprobs = pairs.logprobs.detach().clone().requires_grad_()
    loss = script.module.preference_loss(logprobs, pairs.ref_logprobs, pairs.weights, pairs.mask, hp or script.hp)
    return loss.detach(), torch.autograd.grad(loss, logprobs)[0]


def masked_positions_do_not_exist(script: Script, pairs: Pairs) -> None:
    loss, slope = loss_and_slope(script, pairs)
    zero(slope[~pairs.mask], "the gradient on a masked position")
    for garbage in GARBAGE:
        spoiled = [x.masked_fill(~pairs.mask, garbage) for x in pairs[:2]]
        got = loss_and_slope(script, pairs._replace(logprobs=spoiled[0], ref_logprobs=spoiled[1]))
        for name, left, right in zip(("loss", "gradient"), got, (loss, slope), strict=True):
            close(left, right, f"with {garbage:g} on the masked positions, the {name}", rtol=0.0, atol=0.0)


def padding_does_not_exist(script: Script, pairs: Pairs) -> None:
    loss, slope = loss_and_slope(script, pairs)
    tokens = slope.shape[-1]
    padded = [torch.nn.functional.pad(x, (0, tokens), value=7.0) for x in pairs[:2]]
    mask = torch.nn.functional.pad(pairs.mask, (0, tokens), value=False)
    longer = Pairs(padded[0], padded[1], pairs.weights, mask)
    got, moved = loss_and_slope(script, longer)
    close(got, loss, "with the responses padded to twice the length, the loss")
    close(moved[..., :tokens], slope, "with the responses padded to twice the length, the gradient")
    zero(moved[..., tokens:], "with the responses padded to twice the length, the gradient on a pad")


def splits_do_not_exist(script: Script, pairs: Pairs) -> None:
    loss, slope = loss_and_slope(script, pairs)
    count, longest = len(pairs.weights), pairs.mask.shape[-1]
    alone = [([row], max(int(pairs.mask[row].any(0).sum()), 1)) for row in range(count)]
    halves = [(list(range(count))[start::2], longest) for start in range(min(2, count))]
    for parts in (alone, halves):
        total, moved = torch.zeros((), dtype=torch.float64), torch.zeros_like(slope)
        for rows, width in parts:
            cut = [x[rows][..., :width] for x in (pairs.logprobs, pairs.ref_logprobs, pairs.mask)]
            value, part = loss_and_slope(script, Pairs(cut[0], cut[1], pairs.weights[rows], cut[2]))
            total += value
            moved[rows, :, :width] += part
        close(total, loss, f"in {len(parts)} micro-batches, the loss")
        close(moved, slope, f"in {len(parts)} micro-batches, the gradient")


def order_does_not_exist(script: Script, pairs: Pairs) -> None:
    """Of the pairs; which response of a pair was chosen is what the loss is about."""
    loss, slope = loss_and_slope(script, pairs)
    order = torch.arange(len(pairs.weights)).flip(0)
    got, moved = loss_and_slope(script, Pairs(*(x[order] for x in pairs)))
    close(got, loss, "with the pairs in another order, the loss")
    close(moved, slope[order], "with the pairs in another order, the gradient")


def every_number_acts(script: Script, pairs: Pairs) -> None:
    names = arguments_read(script.module)
    if script.plan is not None:
        numbers = [p for taken in script.plan.question_parameters.values() for p in taken.values()]
        names = [parameter.argument for parameter in numbers]
        for parameter in numbers:
            value = getattr(script.hp, parameter.argument, None)
            need(value == parameter.value, f"the script's {parameter.argument} is {value}, not {parameter.value}")
    margin_is_as_named(script, pairs)
    rich = make_pairs(5, 64, 4)
    loss, slope = loss_and_slope(script, rich)
    for name in names:
        value = getattr(script.hp, name)
        others = [
            loss_and_slope(script, rich, dataclasses.replace(script.hp, **{name: other}))
            for other in other_values(value, limits(script.module)[name])
        ]
        if all(torch.equal(loss, other) and torch.equal(slope, moved) for other, moved in others):
            raise Broken(f"{name} changes nothing: loss and gradient are as with {value}")


def margin_is_as_named(script: Script, pairs: Pairs) -> None:
    """Of two equal responses the loss is log(1 + exp(margin)): the chosen one has to be ahead by that much."""
    equal = Pairs(*(x[:, :1].expand_as(x) if x.ndim > 1 else x for x in pairs))
    loss, _ = loss_and_slope(script, equal)
    margin = torch.tensor(script.number("margin", 0.0), dtype=torch.float64)
    close(loss, pairs.weights.sum() * torch.nn.functional.softplus(margin), "of pairs of equal responses, the loss")


def float64_stays_float64(script: Script, pairs: Pairs) -> None:
    with NoSinglePrecision():
        for value in loss_and_slope(script, pairs):
            need(value.dtype == torch.float64, f"the loss is {value.dtype} where everything given is float64")


def vmap_and_grad_go_through(script: Script, pairs: Pairs) -> None:
    """Every pair in a lane of its own is what it is alone."""

    def loss(*given: Tensor) -> Tensor:
        value: Tensor = script.module.preference_loss(*(x[None] for x in given), script.hp)
        return value

    together = torch.func.vmap(loss)(*pairs)
    for row, value in enumerate(together):
        close(value, loss(*(x[row] for x in pairs)), "of pairs side by side, the loss of one")


def degenerate_groups_are_defined(script: Script, pairs: Pairs) -> None:
    """Empty and equal responses, and log-probs far from the reference's, have a loss and a gradient."""
    empty = pairs._replace(mask=torch.zeros_like(pairs.mask))
    equal = pairs._replace(logprobs=pairs.logprobs[:, :1].expand_as(pairs.logprobs), ref_logprobs=pairs.logprobs)
    far, behind = (pairs._replace(logprobs=pairs.logprobs * torch.tensor(s)[:, None]) for s in ((1, 1e5), (1e5, 1)))
    made = {"empty responses": empty, "equal responses": equal, "an improbable rejected response": far}
    for name, each in (made | {"an improbable chosen response": behind}).items():
        for value in loss_and_slope(script, each):
            need(bool(value.isfinite().all()), f"with {name}, loss or gradient is {value.flatten()[0].item()}")


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        masked_positions_do_not_exist,
        padding_does_not_exist,
        splits_do_not_exist,
        order_does_not_exist,
        vmap_and_grad_go_through,
        degenerate_groups_are_defined,
        every_number_acts,
        float64_stays_float64,
    )
}
"""By the names that they have in `laws`."""


def check_pair_laws(script: Script, seed: int, batches: int) -> list[LawResult]:
    """Every law on the batches of a seed; those about rewards, advantages and ratios are skipped."""
    sizes = ((4, 3), (1, 4), (3, 1), (2, 2))
    made = [make_pairs(1000 * seed + i, *sizes[i % len(sizes)]) for i in range(batches)]
    found = []
    for each in sorted(LAWS, key=lambda law: law.number):
        if (check := CHECKS.get(each.name)) is None:
            why = "it is about rewards, advantages or ratios, and a script on pairs has none"
            found.append(LawResult(each, "skipped", why))
            continue
        try:
            for pairs in made[: each.batches]:
                check(script, pairs)
            found.append(LawResult(each, "holds"))
        except Exception as error:
            found.append(LawResult(each, "broken", described(error, script)))
    return found
