"""E[g] of a script on pairs, exactly: its `preference_loss` on every pair of responses, beside that of the win rate.

Two responses to a prompt are sampled independently; the first is chosen with the chance of Bradley and Terry,
P(y, y') = sigmoid(R(y) - R(y')), by the rewards R of the environment. At the first step they are from the policy
itself, which is the reference; later the policy has left the reference, from which they still are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specc.verify.enumerate import Moments, without_rounding
from specc.verify.environment import Environment, Tables
from specc.verify.script import Script

RESPONSES = 2
"""responses to a prompt"""


def sampler(tables: Tables, later: bool) -> Tensor:
    """The log-probs of the policy that the pairs are from, which is the reference. [B, M, T]."""
    return tables.ref_logprobs if later else tables.logprobs


def wins(tables: Tables) -> Tensor:
    """The chance that one response is chosen over another. [B, M, M]."""
    return torch.sigmoid(tables.rewards[:, :, None] - tables.rewards[:, None, :])


def win_rate_gradient(environment: Environment, later: bool = False) -> Tensor:
    """The gradient of the chance that a response of the policy is chosen over one of the sampler, of each prompt.

    It is E[P(y, y') grad log pi(y)], exactly 0 where only rounding is left. [B, P].
    """
    tables = environment.tables
    against = torch.einsum("bmn,bn->bm", wins(tables), sampler(tables, later).sum(-1).exp())
    terms = torch.einsum("bm,bm,bmtp->bmp", tables.probs, against, tables.scores)
    return without_rounding(terms.sum(1), terms.abs().sum((1, 2)))


def pair_moments(script: Script, environment: Environment, hp: Any = None, *, later: bool = False) -> Moments:
    """The mean gradient, uphill, of a batch with one pair for each of the environment's prompts. [B, P]."""
    tables, module, hp = environment.tables, script.module, hp or script.hp
    prompts, outcomes = tables.rewards.shape
    index = torch.cartesian_prod(torch.arange(outcomes), torch.arange(outcomes))  # chosen and rejected [N, 2]
    chances = sampler(tables, later).sum(-1).exp()[:, index].prod(-1)
    chances = 2 * chances * wins(tables)[:, index[:, 0], index[:, 1]]  # either of the two may have come first
    logprobs = tables.logprobs[:, index].requires_grad_()
    reference, mask = sampler(tables, later)[:, index], tables.mask[index].expand(prompts, -1, -1, -1)
    weights = torch.full((1,), 1 / prompts, dtype=torch.float64)

    def gain(logprobs: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
        """Minus the loss of one pair."""
        loss: Tensor = module.preference_loss(logprobs[None], reference[None], weights, mask[None], hp)
        return -loss

    with script.running():
        gains = torch.func.vmap(torch.func.vmap(gain))(logprobs, reference, mask)
        slopes = torch.autograd.grad(gains.sum(), logprobs)[0] if gains.requires_grad else torch.zeros_like(logprobs)
    gradient = torch.einsum("bnrt,bnrtp->bnp", slopes, tables.scores[:, index])
    mean = torch.einsum("bn,bnp->bp", chances, gradient)
    sizes = torch.einsum("bn,bnp->b", chances, gradient.abs())
    return Moments(without_rounding(mean, sizes), None, len(index))
