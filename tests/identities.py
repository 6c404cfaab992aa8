"""Equal mathematics gives equal gradients: for a spec, other specs whose expected gradient is the same, or a multiple.

Each identity takes the data of a spec and gives that of another one, and what times its E[g] the first one's is.
"""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from strategies import as_sampled, script_of
from torch import Tensor

from specc.load import findings_of
from specc.spec import Spec
from specc.verify.environment import Environment, coin, fixed, level
from specc.verify.script import Script
from specc.verify.verdict import expected as expected_gradient

Data = dict[str, Any]

WORLDS = [fixed("real")[0], fixed("binary")[2]]


@dataclass(frozen=True)
class Identity:
    """E[g] of the spec, with `numbers` changed, is `factor` times that of the spec `other`."""

    name: str
    other: Data
    factor: float = 1.0
    numbers: dict[str, float] | None = None
    worlds: tuple[Environment, ...] = tuple(WORLDS)
    reused: bool = False
    of_loss: bool = False
    """whether it is about the loss alone, so that it holds given any statistics of past steps"""


def changed(data: Data, **parts: Any) -> Data:
    """The data with other answers; of a mapping, only the fields that are given, and None removes one."""
    made = copy.deepcopy(data)
    for name, value in parts.items():
        if isinstance(value, dict) and isinstance(made.get(name), dict):
            made[name] = {k: v for k, v in {**made[name], **value}.items() if v is not None}
        else:
            made[name] = value
    return made


def identities(spec: Spec) -> Iterator[Identity]:
    """Those that say something about this spec."""
    data = spec.model_dump(exclude_none=True, exclude={"specc", "accept", "defaults", "claim", "target"})
    if not spec.online:
        del data["sampling"]
        yield from identities_of_pairs(data)
        return
    if (clip := data["reward"].get("clip")) is not None:
        data["reward"]["clip"] = [clip["low"], clip["high"]]
    if "length_adaptive" in data["baseline"]:
        del data["baseline"]["gae_lambda"]  # whose default is not in force
    kl, objective, k = data["kl"], data["objective"], spec.sampling.group_size
    plain = data["normalization"]["scope"] == "none"
    weightings = ("clip", "detached_clip", "soft_gate", "token_clip")
    if kl["placement"] != "none":
        yield Identity(
            "a coefficient of 0 is no KL",
            changed(
                data,
                kl={"placement": "none"}
                | dict.fromkeys(("estimator", "unit", "coefficient", "reference", "after_baseline")),
            ),
            numbers={"kl_coefficient": 0.0},
        )
        if kl["estimator"] == "k1":
            unit = {"token": "sequence", "sequence": "token"}[kl["unit"]]
            constant = objective["aggregation"].startswith("seq_mean_token_sum")
            if kl["placement"] == "reward" and objective["quantity"] == "sequence_advantage" and plain:
                yield Identity("k1 of the tokens adds up to k1 of the response", changed(data, kl={"unit": unit}))
            elif kl["placement"] == "loss" and constant and not (spec.sampling.mask_truncated or spec.sampling.selects):
                yield Identity(
                    "k1 in the loss has no expected gradient",
                    changed(
                        data,
                        kl={"placement": "none"} | dict.fromkeys(("estimator", "unit", "coefficient", "reference")),
                    ),
                )
        independent = plain and data["baseline"]["source"] in ("none", "leave_one_out", "greedy", "constant")
        if (kl["placement"], kl["estimator"]) == ("loss", "k2") and independent:
            other = changed(data, kl={"placement": "reward", "estimator": "k1"})
            name = "k2 in the loss is k1 in the reward for one token"
            yield Identity(name, other, worlds=(coin((1, 1), (1, 3)),), of_loss=True)
    if objective["ratio"] != "none":
        none = dict.fromkeys(weightings)
        other = changed(data, objective={**none, "ratio": "none"})
        yield Identity("at ratio 1 no ratio, clip or gate acts", other, of_loss=True)
        if "clip" in objective and "dual" not in objective["clip"]:
            wide = {"clip_low": 1.0, "clip_high": math.inf}
            yield Identity(
                "an infinite clip is no clip", changed(data, objective=none), numbers=wide, reused=True, of_loss=True
            )
        if (
            objective["ratio"] == "sequence_mean_token"
            and objective["quantity"] == "sequence_advantage"
            and not any(name in objective for name in weightings)
        ):
            yield Identity(
                "token gradients of the mean ratio", changed(data, objective={"ratio": "sequence_mean"}), reused=True
            )
    if (
        data["baseline"]["source"] == "group_mean"
        and plain
        and (kl["placement"] == "none" or objective["quantity"] == "sequence_advantage")
        and kl["placement"] != "loss"
        and not kl.get("after_baseline")
        and not spec.reward.credits_steps
        and "positive_nll" not in objective
    ):
        other = changed(data, baseline={"source": "leave_one_out"})
        yield Identity("the group mean is (k - 1)/k leave-one-out", other, factor=(k - 1) / k)
    if data["baseline"]["source"] == "length_weighted":
        simple = "leave_one_out" if data["baseline"]["leave_one_out"] else "group_mean"
        other = changed(data, baseline={"source": simple, "leave_one_out": None})
        yield Identity("equal lengths weigh the same", other, worlds=(level(),))
    whole = objective["aggregation"] != "prompt_mean" or spec.sampling.rule != "positive"  # as many of each prompt
    if objective["aggregation"] != "seq_mean_token_sum" and "positive_nll" not in objective and whole:
        other = changed(data, objective={"aggregation": "seq_mean_token_sum", "max_length": None})
        factor = 1 / objective.get("max_length", 2)
        yield Identity("aggregations of equal lengths", other, factor=factor, worlds=(level(),), of_loss=True)


def identities_of_pairs(data: Data) -> Iterator[Identity]:
    """Those of specs on pairs, at the first step, where the policy is the reference."""
    objective = data["objective"]
    if objective["length_normalized"]:
        other = changed(data, objective={"length_normalized": False, "beta": objective["beta"] / 2})
        yield Identity("the mean of two tokens is half their sum", other, worlds=(level(),))
    if data["kl"]["placement"] == "implicit":
        other = changed(data, objective={"margin": 0.0})
        factor = 2 / (1 + math.exp(-objective["margin"]))
        yield Identity("at the reference a margin is a factor", other, factor=factor)
    else:
        other = changed(data, kl={"placement": "implicit"})
        even = level(uniform=True)
        yield Identity("a policy that prefers nothing is a reference", other, worlds=(even,))


def broken_identities(spec: Spec, script: Script, most: int | None = None) -> Iterator[str]:
    """The identities that do not hold for the spec's script; of many, `most` that take turns from spec to spec."""
    found = list(identities(spec))
    turn = zlib.crc32(repr(spec).encode()) % max(len(found), 1)
    for each in [*found[turn:], *found[:turn]][:most]:
        other = Spec.model_validate(each.other)
        carried = script.has("update_state") and not each.of_loss
        if carried or any(not finding.warning for finding in findings_of(other)):
            continue
        script, beside = as_sampled(script), as_sampled(script_of(other))
        k = spec.sampling.group_size
        for world in each.worlds:
            left = expected(script, world, k, each.numbers or {}, each.reused)
            right = expected(beside, world, k, {}, each.reused) * each.factor
            scale = 1 + float(left.abs().max())
            if not torch.allclose(left, right, rtol=1e-9, atol=1e-10 * scale):
                yield f"{each.name}: differs by {float((left - right).abs().max()):.3g}"
                break


def expected(script: Script, world: Environment, size: int, numbers: dict[str, float], reused: bool) -> Tensor:
    world = world.only(0) if size > 3 else world
    return expected_gradient(script, world, size, script.with_numbers(**numbers), reused)
