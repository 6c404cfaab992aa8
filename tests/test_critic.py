"""Critics: what they compute, how they are trained, and what follows from a spec with one."""

from __future__ import annotations

import copy
import json
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from conftest import ROOT, generated, load_module
from fuzz import disagreements
from safetensors.torch import load_file
from strategies import script_of
from test_resume import run_until
from test_training import run, same, untimed, weights_of
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from specc.compiler import compile_spec
from specc.demo import DemoFiles
from specc.derive import derive
from specc.load import findings_of
from specc.plan import Plan
from specc.spec import Spec
from specc.verify.script import Script

BATCH_STD = {"scope": "batch", "subtract_mean": True, "unit": "token"}


def spec_of(kl: Any = "none", normalization: Any = "none", reward: str = "verifier", **critic: Any) -> Spec:
    return Spec.model_validate(
        {
            "name": "critic",
            "reward": reward,
            "kl": kl if isinstance(kl, str) else {"coefficient": 0.3, **kl},
            "baseline": {"source": "critic", **critic},
            "normalization": normalization,
            "objective": {
                "quantity": "token_advantage",
                "ratio": "token",
                "clip": {},
                "aggregation": "seq_mean_token_sum",
            },
            "sampling": {"group_size": 2, "minibatches": 2},
        }
    )


def script_text(spec: str, folder: Path) -> ModuleType:
    (folder / "critic.yaml").write_text(spec, encoding="utf-8")
    target = folder / "critic.py"
    target.write_text(compile_spec(folder / "critic.yaml").script, encoding="utf-8")
    return load_module(target)


@pytest.fixture
def script(request: pytest.FixtureRequest, tmp_path: Path) -> ModuleType:
    """The whole script of a spec; its parameter is the critic's fields."""
    data = spec_of(kl={"placement": "reward"}, normalization=BATCH_STD, **request.param).model_dump(
        mode="json", exclude_none=True
    )
    return script_text(json.dumps(data), tmp_path)


OWN, SHARED = {"value_clip": 0.5}, {"backbone": "shared"}
both = pytest.mark.parametrize("script", [OWN, SHARED], ids=["own", "shared"], indirect=True)
SMALL = {"group_size": 4, "learning_rate": 1e-3}


# -------- values --------


@pytest.fixture
def sampled(tiny_demo: DemoFiles) -> tuple[Any, Tensor, Tensor, Tensor, Tensor]:
    """The policy, two prompts of which one is padded, and two responses of each, of different lengths."""
    model = AutoModelForCausalLM.from_pretrained(tiny_demo.model)
    ids = torch.tensor([[0, 0, 3, 4], [5, 6, 7, 8]])
    mask = torch.tensor([[False, False, True, True], [True] * 4])
    tokens = torch.arange(12).view(2, 2, 3) % 9 + 2
    token_mask = torch.tensor([[[True, True, True], [True, False, False]], [[True, True, False], [True] * 3]])
    return model, ids, mask, tokens, token_mask


@pytest.mark.parametrize("shared", [False, True])
def test_values_are_of_the_states_before_each_token(shared: bool, sampled: Any) -> None:
    """By one plain forward pass for each response: the first is the prompt's, none is of the last token's state."""
    module = generated("vcppo")
    model, ids, mask, tokens, token_mask = sampled
    critic = module.Critic(copy.deepcopy(model.base_model), shared)
    with torch.no_grad():
        assert not critic(ids, mask, tokens, token_mask).any()  # a new head says 0
        critic.head.linear.weight.normal_(generator=torch.Generator().manual_seed(0))
        critic.head.linear.bias.fill_(0.5)
        values = critic(ids, mask, tokens, token_mask)
        for b, g in product(range(2), range(2)):
            row = torch.cat([ids[b][mask[b]], tokens[b, g][token_mask[b, g]]])[None]
            hidden = model.base_model(row).last_hidden_state[0]
            every = critic.head.linear(hidden)[:, 0]
            prompt, length = int(mask[b].sum()), int(token_mask[b, g].sum())
            torch.testing.assert_close(values[b, g, :length], every[prompt - 1 : prompt - 1 + length])
            assert not values[b, g, length:].any()


def test_a_head_on_the_policy_gives_the_policys_log_probs_too(sampled: Any, tmp_path: Path) -> None:
    module = script_text(json.dumps(spec_of(**SHARED).model_dump(mode="json", exclude_none=True)), tmp_path)
    model, *rows = sampled
    policy, with_head = module.Policy(model, 0.7, True), module.ActorCritic(model, 0.7, True)
    torch.nn.init.ones_(with_head.head.linear.weight)
    with torch.no_grad():
        logprobs, entropies, values = with_head(*rows)
        assert all(torch.equal(*pair) for pair in zip((logprobs, entropies), policy(*rows), strict=True))
        hidden = module.hidden_before(model.base_model, True, *rows)
        torch.testing.assert_close(values[rows[-1]], hidden.sum(-1))


def test_a_critic_that_starts_as_the_reward_model_says_what_that_says(tiny_demo: DemoFiles, sampled: Any) -> None:
    module = generated("ppo")
    model, ids, mask, tokens, token_mask = sampled
    tokenizer = AutoTokenizer.from_pretrained(tiny_demo.model)
    judge = AutoModelForSequenceClassification.from_pretrained(tiny_demo.reward_model).eval()
    with torch.no_grad():
        critic = module.critic_from_reward_model(str(tiny_demo.reward_model), tokenizer, model, shared=False)
        values = critic(ids, mask, tokens, token_mask)
        row = torch.cat([ids[1], tokens[1, 1]])[None]
        scores = judge.score(judge.base_model(row).last_hidden_state)[0, :, 0]
    torch.testing.assert_close(values[1, 1], scores[3:6])


def test_a_reward_model_with_other_tokens_is_no_critic(tiny_demo: DemoFiles, sampled: Any) -> None:
    module = generated("ppo")
    tokenizer = AutoTokenizer.from_pretrained(tiny_demo.model)
    tokenizer.add_tokens(["another"])
    with pytest.raises(SystemExit, match=r"error: --reward_model: .* has another tokenizer than the policy"):
        module.critic_from_reward_model(str(tiny_demo.reward_model), tokenizer, sampled[0], shared=False)


def test_explained_variance() -> None:
    """Returns (0, 2, 4) have variance 8/3; what values (1, 2, 3) leave is (-1, 0, 1), of 2/3."""
    module = generated("vcppo")
    targets = torch.tensor([[[0.0, 2.0, 4.0, torch.nan]]])
    assert module.describe_values(torch.tensor([[[1.0, 2.0, 3.0, 99.0]]]), targets) == {
        "values": 2.0,
        "explained_variance": pytest.approx(0.75),
    }
    shifted = module.describe_values(targets.nan_to_num(50.0) + 7, targets)
    assert shifted["explained_variance"] == 1 and shifted["values"] == 9
    for nothing in (torch.full_like(targets, torch.nan), torch.ones_like(targets)):
        assert module.describe_values(torch.zeros_like(targets), nothing)["explained_variance"] == 0


# -------- training --------


@both
def test_it_learns_the_returns(script: ModuleType, tiny_demo: DemoFiles, tmp_path: Path) -> None:
    """Those of a reward that the prompt's first digit decides, which no policy can change."""
    verifier = tmp_path / "verifier.py"
    verifier.write_text("def score(prompts, completions):\n    return [float(p[0] in '56789') for p in prompts]\n")
    own = (
        {"critic_learning_rate": 3e-3, "learning_rate": 1e-6} if hasattr(script, "Critic") else {"learning_rate": 3e-3}
    )
    told = {"steps": 40, "kl_coefficient": 1e-6, "reward": f"{verifier}:score", "group_size": 4, **own}
    rows = run(script, tiny_demo, tmp_path / "run", **told)[:-1]
    assert rows[0]["values"] == 0 and rows[0]["explained_variance"] == 0
    first, last = (sum(row["value_loss"] for row in part) for part in (rows[:5], rows[-5:]))
    assert last < 0.5 * first
    assert sum(row["explained_variance"] for row in rows[-5:]) / 5 > 0.5


@pytest.mark.parametrize("script", [{"pretrain_steps": 2}], indirect=True)
def test_pretraining_trains_the_critic_alone(script: ModuleType, tiny_demo: DemoFiles, tmp_path: Path) -> None:
    told = SMALL | {"lr_scheduler": "linear", "warmup_steps": 2, "save_every": 1, "keep_checkpoints": 9}
    rows = run(script, tiny_demo, tmp_path / "run", steps=4, baseline_pretrain_steps=2, **told)[:-1]
    kept = [tmp_path / "run" / f"checkpoint-{step}" for step in (1, 2, 3)]
    policies, critics = (
        [load_file(path / name) for path in kept] for name in ("model.safetensors", "model_1.safetensors")
    )
    before = load_file(tiny_demo.model / "model.safetensors")
    for policy in policies[:2]:
        assert same({name.removeprefix("model."): weight for name, weight in policy.items()}, before)
    assert not same(policies[1], policies[2])
    assert not same(critics[0], critics[1]) and not same(critics[1], critics[2])
    assert [row["learning_rate"] for row in rows] == [0, 0, 1e-3, 0]  # two warm-up updates in the third step, two down
    for row in rows[:2]:
        assert row.keys() >= {"value_loss", "values", "explained_variance", "reward", "kl"}
        assert not {"loss", "grad_norm", "entropy"} & row.keys() and row["kl"] == 0
    assert all({"loss", "grad_norm", "entropy"} <= row.keys() for row in rows[2:])


def test_a_critic_learns_where_no_advantage_differs(tiny_demo: DemoFiles, tmp_path: Path) -> None:
    """A reward of 1 for everything, standardized with values of 0: the policy has no gradient, the critic has one."""
    (tmp_path / "verifier.py").write_text("def score(completions):\n    return [1.0] * len(completions)\n")
    script, given = generated("vcppo"), {"reward": f"{tmp_path / 'verifier.py'}:score", "minibatches": 1}
    with pytest.warns(UserWarning, match="advantages are all 0"):
        rows = run(
            script, tiny_demo, tmp_path / "run", steps=2, critic_learning_rate=1e-2, baseline_gae_lambda=1.0, **given
        )
    assert rows[0]["grad_norm"] == 0 and rows[0]["value_loss"] == pytest.approx(0.5)
    assert rows[1]["values"] > 0.01


@both
def test_a_run_that_died_is_resumed_exactly(script: ModuleType, tiny_demo: DemoFiles, tmp_path: Path) -> None:
    told = SMALL | {"steps": 5, "save_every": 2, "lr_scheduler": "linear", "epochs": 2}
    whole, folder = tmp_path / "whole" / "run", tmp_path / "died" / "run"
    run(script, tiny_demo, whole, **told)
    run_until(3, script, tiny_demo, folder, **told)
    assert [path.name for path in folder.glob("checkpoint-*")] == ["checkpoint-2"]
    run(script, tiny_demo, folder, resume=True, **told)
    assert same(weights_of(folder), weights_of(whole))
    rows = [
        [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()] for path in (folder, whole)
    ]
    assert untimed(rows[0]) == untimed(rows[1])
    names = sorted(path.name for path in (whole / "checkpoint-5").glob("*.safetensors"))
    assert len(names) == (2 if hasattr(script, "Critic") else 1)
    for name in names:
        assert same(*(load_file(path / "checkpoint-5" / name) for path in (folder, whole)))
    got, right = (torch.load(path / "checkpoint-5" / "trainer.pt") for path in (folder, whole))
    assert got == right


@both
def test_gradient_checkpointing_is_taken(script: ModuleType, tiny_demo: DemoFiles, tmp_path: Path) -> None:
    plain, saving = (
        run(script, tiny_demo, tmp_path / str(how), steps=2, gradient_checkpointing=how, **SMALL)
        for how in (False, True)
    )
    for row, other in zip(untimed(plain)[:-1], untimed(saving)[:-1], strict=True):
        assert other == {name: pytest.approx(value, rel=1e-3, abs=1e-4) for name, value in row.items()}


# -------- what follows from a spec --------


def test_ppo_has_four_models() -> None:
    plan = compile_spec(ROOT / "algorithms" / "ppo.yaml").plan
    assert plan.models == ["policy (trained)", "critic (trained)", "reference", "reward model"]
    assert "forward and backward pass of the critic, 8 update(s)" in plan.passes
    shared = Plan(spec_of(**SHARED))
    assert shared.models == ["policy with a value head (trained)"] and not any(
        "critic" in step for step in shared.passes
    )
    assert not shared.skips_rows and Plan(spec_of()).skips_rows


@pytest.mark.parametrize(
    ("answer", "normalization", "verdict", "where"),
    [
        ({"gae_lambda": 1.0}, "none", "unbiased", []),
        ({"gae_lambda": 1.0, "critic_lambda": 0.5, "value_clip": 0.2, "pretrain_steps": 9}, "none", "unbiased", []),
        ({}, "none", "biased", ["baseline.gae_lambda"]),
        ({"gae_lambda": 1.0, "gamma": 0.99}, "none", "biased", ["baseline.gamma"]),
        ({"length_adaptive": {"alpha": 0.05}}, "none", "biased", ["baseline.length_adaptive"]),
        ({"gae_lambda": 1.0}, {"scope": "batch"}, "asymptotic", ["normalization"]),
        ({"gae_lambda": 1.0}, {"scope": "group"}, "biased", ["normalization"]),
        ({"gae_lambda": 1.0}, {"scope": "group", "divide_by": "mean"}, "biased", ["normalization"]),
    ],
)
def test_verdicts(answer: dict[str, Any], normalization: Any, verdict: str, where: list[str]) -> None:
    found = derive(spec_of(normalization=normalization, **answer))
    assert (found.binary, [part.where for part in found.effects]) == (verdict, where)


def test_a_group_std_of_exactly_1_is_none() -> None:
    """Two rewards of 0 and 1 have a std of 1/2, and 1/2 is added."""
    half = {"scope": "group", "ddof": 0, "epsilon": 0.5}
    found = derive(spec_of(normalization=half, gae_lambda=1.0))
    assert (found.binary, found.real) == ("unbiased", "biased")


LAMBDAS = [{"gae_lambda": 0.0}, {"gae_lambda": 0.5}, {"gae_lambda": 1.0}, {"gae_lambda": 1.0, "gamma": 0.9}]
LAMBDAS += [{"length_adaptive": {"alpha": alpha}} for alpha in (0.05, 1.5)]
PENALTIES = [{"placement": "reward", "unit": unit} for unit in ("token", "sequence")]
PENALTIES += [{"placement": "reward", "estimator": "k2"}, {"placement": "loss", "estimator": "k3"}]
SCOPES = [
    "none",
    {"scope": "batch"},
    {"scope": "batch", "divide_by": "none", "subtract_mean": True},
    BATCH_STD,
    {"scope": "batch", "divide_by": "mean"},
    {"scope": "running", "subtract_mean": True},
    {"scope": "group", "unit": "token"},
    {"scope": "group"},
    {"scope": "group", "ddof": 0, "epsilon": 0.5},
]


@pytest.mark.parametrize("number", [0, 3, 7, 10])
def test_rules_and_enumeration_agree(number: int) -> None:
    """A third of the combinations of lambdas, KLs and normalizations; each case has every twelfth."""
    tried = 0
    for answer, kl, scope in list(product(LAMBDAS, PENALTIES, SCOPES))[number::12]:
        spec = spec_of(kl, scope, **answer)
        if errors := [finding.slug for finding in findings_of(spec) if not finding.warning]:
            assert errors == ["kl-on-last-token"]
            continue
        script: Script = script_of(spec)
        assert list(disagreements(spec, script)) == [], (answer, kl, scope)
        tried += 1
    assert tried >= 15
