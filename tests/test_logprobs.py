"""Log-probs and rollouts: padding, sharing and chunking do not exist, and what is scored is what was sampled.

The models are random and tiny, with weights large enough that a wrong position or a leaking mask shows.
What they answer is held to the plainest computation there is: one unpadded row through the model, and a log-softmax.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Cohere2Config,
    CohereConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from specc.demo.characters import character_tokenizer
from templates.sections import logprobs as section
from templates.sections import rollouts
from templates.sections.data import load_rows, pad_left, rows_of_step, tokenize
from templates.sections.logprobs import Policy, pack, probe_sharing, sharing_pays, token_logprobs
from templates.sections.models import load_policy, load_tokenizer
from templates.sections.rollouts import Responses, generate, generation_config, respond

VOCABULARY, PAD, EOS = 15, 0, 2
CPU = torch.device("cpu")
DROPOUT = 0.3

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
SHARED = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": EOS}
LLAMA = SIZES | SHARED | {"head_dim": 8, "num_key_value_heads": 1, "max_position_embeddings": 64}
CONFIGS: dict[str, PreTrainedConfig] = {
    "gpt2": GPT2Config(
        **SHARED, n_positions=64, n_embd=16, n_layer=2, n_head=2, initializer_range=0.3,
        resid_pdrop=DROPOUT, embd_pdrop=DROPOUT, attn_pdrop=DROPOUT,
    ),
    "llama": LlamaConfig(**LLAMA, initializer_range=0.4, attention_dropout=DROPOUT),
}  # fmt: skip


def build(config: PreTrainedConfig) -> PreTrainedModel:
    """A random model, the same for the same config."""
    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(config)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each family, with dropout in its config, and a tokenizer."""
    made = {}
    for name, config in CONFIGS.items():
        made[name] = tmp_path_factory.mktemp(name)
        build(config).save_pretrained(made[name])
        character_tokenizer("0123456789=", 64).save_pretrained(made[name])
    return made


@pytest.fixture(params=CONFIGS)
def model(request: pytest.FixtureRequest, folders: dict[str, Path]) -> PreTrainedModel:
    """Each family's policy as a script loads it, in train mode."""
    model, _ = load_policy(str(folders[request.param]))
    return model.train()


@pytest.fixture
def sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts are shared wherever they can be, also where it does not pay."""
    monkeypatch.setattr(section, "sharing_pays", lambda *sizes: True)


def responses_of(
    prompt_lengths: tuple[int, ...], lengths: tuple[tuple[int, ...], ...], longest: int, seed: int = 0
) -> tuple[list[list[int]], Responses]:
    """Random prompts of the lengths, and random responses to each, padded to `longest` with garbage off the mask."""
    random = torch.Generator().manual_seed(seed)
    prompts = [torch.randint(3, VOCABULARY, (length,), generator=random).tolist() for length in prompt_lengths]
    tokens = torch.randint(3, VOCABULARY, (len(prompts), len(lengths[0]), longest), generator=random)
    mask = torch.arange(longest) < torch.tensor(lengths)[..., None]
    ids, prompt_mask = pad_left([{"ids": prompt} for prompt in prompts], PAD, CPU)
    return prompts, Responses(ids, prompt_mask, tokens, mask, mask.any(-1))


def one_and_five() -> tuple[list[list[int]], Responses]:
    """Prompts of 1 and 5 tokens in one left-padded batch, with responses of 1 to 4 tokens."""
    return responses_of((1, 5), ((4, 1, 2), (2, 3, 4)), longest=4)


def plain(
    model: PreTrainedModel, prompts: list[list[int]], batch: Responses, temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies [B, G, T] from one unpadded row a response: `model(input_ids).logits`."""
    logprobs, entropies = [], []
    for prompt, tokens_GT, mask_GT in zip(prompts, batch.tokens_BGT, batch.mask_BGT, strict=True):
        for tokens, mask in zip(tokens_GT, mask_GT, strict=True):
            response, absent = tokens[mask], torch.zeros(int((~mask).sum()))
            row = torch.cat([torch.tensor(prompt), response])
            logits = model(row[None]).logits[0, len(prompt) - 1 : -1] / temperature
            distribution = logits.log_softmax(-1)
            logprobs += [distribution[torch.arange(len(response)), response], absent]
            entropies += [-(distribution.exp() * distribution).sum(-1), absent]
    return torch.cat(logprobs).view(batch.mask_BGT.shape), torch.cat(entropies).view(batch.mask_BGT.shape)


def gradients(model: PreTrainedModel, logprobs: Tensor) -> dict[str, Tensor]:
    """The gradient of the sum of the log-probs, weighted unevenly, for each parameter."""
    model.zero_grad()
    (logprobs * torch.linspace(0.5, 1.5, logprobs.numel()).view(logprobs.shape)).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(right: dict[str, Tensor], got: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    assert right.keys() == got.keys() and right
    for name, gradient in right.items():
        error = (gradient - got[name]).abs().max() / gradient.abs().max().clamp(min=1e-3)
        assert error < tolerance, f"{name}: {error}"


# -------- one row, alone, is what a batch must give --------


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(("attention", "shared"), [("sdpa", True), ("sdpa", False), ("eager", False)])
def test_a_left_padded_batch_gives_the_log_probs_and_gradients_of_single_rows(
    model: PreTrainedModel, sharing: None, attention: str, shared: bool, temperature: float
) -> None:
    model.set_attn_implementation(attention)
    prompts, batch = one_and_five()
    right, _ = plain(model, prompts, batch, temperature)
    expected = gradients(model, right)

    logprobs, _ = Policy(model, temperature, shared)(*batch[:4])

    assert logprobs.dtype == torch.float32
    assert torch.allclose(logprobs, right, atol=1e-5, rtol=0)
    assert not logprobs[~batch.mask_BGT].any()
    assert_same(expected, gradients(model, logprobs))


def test_the_models_here_tell_positions_and_neighbours_apart(model: PreTrainedModel) -> None:
    """Without this, the test above could pass with wrong positions or with responses that see each other."""
    row = torch.tensor([[5, 6, 7, 8]])
    right = model(row).logits.log_softmax(-1)
    moved = model(row, position_ids=torch.tensor([[0, 1, 3, 5]])).logits.log_softmax(-1)
    assert (right - moved)[0, -1].abs().max() > 0.01
    assert (right - model(torch.tensor([[5, 6, 9, 8]])).logits.log_softmax(-1))[0, -1].abs().max() > 0.01


@pytest.mark.parametrize("shared", [True, False])
def test_pad_columns_and_the_tokens_in_them_change_nothing(model: PreTrainedModel, sharing: None, shared: bool) -> None:
    _, batch = one_and_five()
    policy = Policy(model, 1.0, shared)
    right, right_entropies = policy(*batch[:4])

    pads = torch.full((2, 3), PAD)
    ids = torch.cat([pads, batch.ids_BP], 1)
    prompt_mask = torch.cat([torch.zeros(2, 3).bool(), batch.prompt_mask_BP], 1)
    tokens = torch.cat([batch.tokens_BGT.masked_fill(~batch.mask_BGT, EOS), torch.full((2, 3, 4), EOS)], 2)
    mask = torch.cat([batch.mask_BGT, torch.zeros(2, 3, 4).bool()], 2)
    logprobs, entropies = policy(ids, prompt_mask, tokens, mask)

    assert torch.allclose(logprobs[..., :4], right, atol=1e-5, rtol=0) and not logprobs[..., 4:].any()
    assert torch.allclose(entropies[..., :4], right_entropies, atol=1e-5, rtol=0) and not entropies[..., 4:].any()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_entropies_are_those_of_the_sampling_distribution(model: PreTrainedModel, temperature: float) -> None:
    prompts, batch = one_and_five()
    _, right = plain(model, prompts, batch, temperature)
    _, entropies = Policy(model, temperature, shared=False)(*batch[:4])
    assert torch.allclose(entropies, right, atol=1e-5, rtol=0)
    assert entropies[batch.mask_BGT].min() > 0 and entropies.max() < math.log(VOCABULARY)


def test_entropy_by_hand() -> None:
    """Probabilities 1/2, 1/4, 1/4 have an entropy of 1.5 ln 2; at temperature 1/2 they are 2/3, 1/6, 1/6."""
    head = torch.nn.Linear(1, 3, bias=False)
    head.weight.data = torch.tensor([[0.5], [0.25], [0.25]]).log()
    config = SimpleNamespace(get_text_config=lambda: SimpleNamespace())
    model = SimpleNamespace(get_output_embeddings=lambda: head, config=config)
    for temperature, entropy, logprob in [
        (1.0, 1.5 * math.log(2), math.log(1 / 4)),
        (0.5, math.log(3 / 2) * 2 / 3 + math.log(6) / 3, math.log(1 / 6)),
    ]:
        holder = SimpleNamespace(model=model, temperature=temperature)
        logprobs, entropies = Policy.score(holder, torch.ones(2, 1), torch.tensor([1, 2]))
        assert torch.allclose(entropies, torch.full((2,), entropy)) and torch.allclose(
            logprobs, torch.full((2,), logprob)
        )


@pytest.mark.parametrize("shared", [True, False])
def test_chunks_do_not_exist(
    model: PreTrainedModel, sharing: None, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    _, batch = one_and_five()
    policy, sizes = Policy(model, 0.6, shared), []
    score = policy.score

    def counting(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        sizes.append(len(hidden))
        return score(hidden, targets)

    policy.score = counting
    right, right_entropies = policy(*batch[:4])
    assert sizes == [int(batch.mask_BGT.sum())]  # only the tokens under the mask have logits at all
    expected = gradients(model, right)

    sizes.clear()
    monkeypatch.setattr(policy, "chunk", 2)
    logprobs, entropies = policy(*batch[:4])
    assert max(sizes) == 2 and sum(sizes) == int(batch.mask_BGT.sum())
    assert torch.allclose(logprobs, right, atol=1e-5, rtol=0)
    assert torch.allclose(entropies, right_entropies, atol=1e-5, rtol=0)
    assert_same(expected, gradients(model, logprobs))


def test_passes_over_some_prompts_at_a_time_give_the_same_log_probs(model: PreTrainedModel, sharing: None) -> None:
    _, batch = responses_of((1, 5, 3), ((4, 1), (2, 3), (4, 4)), longest=4)
    for shared in (True, False):
        policy = Policy(model, 1.0, shared)
        whole = token_logprobs(policy, batch, at_once=3)
        assert not whole.requires_grad and whole.any()
        for at_once in (1, 2):
            assert torch.allclose(token_logprobs(policy, batch, at_once), whole, atol=1e-5, rtol=0)


# -------- packing --------


def test_pack_by_hand_with_a_row_each() -> None:
    ids, mask, tokens = torch.tensor([[0, 5], [6, 7]]), torch.tensor([[False, True], [True, True]]), torch.arange(12)
    rows = pack(ids, mask, tokens.view(2, 2, 3), shared=False)
    assert rows.ids.tolist() == [[0, 5, 0, 1], [0, 5, 3, 4], [6, 7, 6, 7], [6, 7, 9, 10]]
    assert rows.positions.tolist() == [[0, 0, 1, 2]] * 2 + [[0, 1, 2, 3]] * 2
    assert rows.attention.tolist() == [[False, True, True, True]] * 2 + [[True] * 4] * 2
    assert rows.before.tolist() == [[[1, 2, 3], [5, 6, 7]], [[9, 10, 11], [13, 14, 15]]]


def test_pack_by_hand_with_a_shared_prompt() -> None:
    """Row 1 holds: pad, prompt 5, responses (0, 1) and (3, 4); their last tokens predict nothing and are left out."""
    ids, mask, tokens = torch.tensor([[0, 5], [6, 7]]), torch.tensor([[False, True], [True, True]]), torch.arange(12)
    rows = pack(ids, mask, tokens.view(2, 2, 3), shared=True)
    assert rows.ids.tolist() == [[0, 5, 0, 1, 3, 4], [6, 7, 6, 7, 9, 10]]
    assert rows.positions.tolist() == [[0, 0, 1, 2, 1, 2], [0, 1, 2, 3, 2, 3]]
    assert rows.before.tolist() == [[[1, 2, 3], [1, 4, 5]], [[7, 8, 9], [7, 10, 11]]]
    assert rows.attention.shape == (2, 1, 6, 6) and rows.attention.dtype == torch.bool
    assert rows.attention[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],  # the pad sees itself, and nobody sees it
        [0, 1, 0, 0, 0, 0],
        [0, 1, 1, 0, 0, 0],
        [0, 1, 1, 1, 0, 0],
        [0, 1, 0, 0, 1, 0],
        [0, 1, 0, 0, 1, 1],
    ]
    assert rows.attention[1, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 1, 1],
    ]


@st.composite
def shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...], int]:
    """Lengths of 1 to 3 prompts and of 1 to 4 responses to each; an empty response too."""
    prompts, group, longest = (draw(st.integers(1, most)) for most in (3, 4, 5))
    prompt_lengths = tuple(draw(st.integers(1, 6)) for _ in range(prompts))
    lengths = tuple(tuple(draw(st.integers(0, longest)) for _ in range(group)) for _ in range(prompts))
    return prompt_lengths, lengths, longest


RANDOM = {name: build(config).eval() for name, config in CONFIGS.items()}


@settings(max_examples=60, deadline=None)
@given(shape=shapes(), family=st.sampled_from(sorted(CONFIGS)), seed=st.integers(0, 9))
def test_sharing_a_prompt_does_not_exist(
    shape: tuple[tuple[int, ...], tuple[tuple[int, ...], ...], int], family: str, seed: int
) -> None:
    """T = 1, G = 1, prompts of one token and empty responses included; and both agree with single rows."""
    prompts, batch = responses_of(*shape, seed=seed)
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(section, "sharing_pays", lambda *sizes: True)
        shared = Policy(RANDOM[family], 0.8, shared=True)(*batch[:4])
        alone = Policy(RANDOM[family], 0.8, shared=False)(*batch[:4])
        right = plain(RANDOM[family], prompts, batch, 0.8)
    for got in (shared, alone):
        for values, expected in zip(got, right, strict=True):
            assert torch.allclose(values, expected, atol=1e-5, rtol=0)


def test_sharing_pays_when_long_prompts_have_several_responses() -> None:
    """With 1000 prompt tokens and 4 x 10 of response: 1040 (6 x 64 + 1040) against 4 x 1010 (6 x 64 + 1010)."""
    assert sharing_pays(prompt=1000, group_size=4, response=10, hidden=64)
    assert not sharing_pays(prompt=1, group_size=64, response=1000, hidden=64)
    assert not sharing_pays(prompt=1000, group_size=1, response=10, hidden=64)  # as much work, and the slower mask


@pytest.mark.parametrize(("sizes", "rows"), [((9, 4, 2), 2), ((1, 4, 60), 8)])
def test_a_policy_that_may_share_does_where_it_pays(
    sizes: tuple[int, int, int], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = []
    monkeypatch.setattr(section, "pack", lambda *args: packed.append(pack(*args)) or packed[-1])
    prompt, group, longest = sizes
    _, batch = responses_of((prompt, prompt), ((longest,) * group,) * 2, longest)
    with torch.no_grad():
        Policy(RANDOM["llama"], 1.0, shared=True)(*batch[:4])
    assert [len(taken.ids) for taken in packed] == [rows]


# -------- which models can do it --------


def test_sdpa_models_can_share_and_eager_ones_cannot(model: PreTrainedModel) -> None:
    assert probe_sharing(model) is True
    model.set_attn_implementation("eager")
    assert probe_sharing(model) is False


def test_a_fresh_model_is_not_taken_for_one_that_can_share() -> None:
    """Initial weights make every log-prob nearly log 1/V, right or wrong; the probe must see through it."""
    model = build(LlamaConfig(**LLAMA)).eval()
    assert probe_sharing(model) is True
    model.set_attn_implementation("eager")
    assert probe_sharing(model) is False


def test_a_model_that_fails_on_such_a_mask_gets_a_row_for_each_response(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(CONFIGS["llama"]).eval()
    forward = model.base_model.forward

    def refuses(input_ids: Tensor, attention_mask: Tensor | None, **rest: Any) -> Any:
        if attention_mask is not None and attention_mask.ndim == 4:
            raise ValueError("attention_mask must be [batch, tokens]")
        return forward(input_ids, attention_mask=attention_mask, **rest)

    monkeypatch.setattr(model.base_model, "forward", refuses)
    assert probe_sharing(model) is False
    prompts, batch = one_and_five()
    with torch.no_grad():
        assert torch.allclose(Policy(model, 1.0, False)(*batch[:4])[0], plain(model, prompts, batch, 1.0)[0], atol=1e-5)


SCALED = {
    "gemma2": Gemma2Config(**LLAMA, initializer_range=0.4, final_logit_softcapping=2.0, attn_logit_softcapping=None),
    "granite": GraniteConfig(**SIZES, **SHARED, initializer_range=0.4, logits_scaling=3.0),
    "cohere": CohereConfig(**SIZES, **SHARED, initializer_range=0.4, logit_scale=0.3),
    "cohere2": Cohere2Config(**SIZES, **SHARED, initializer_range=0.4, logit_scale=0.3),
}


@pytest.mark.parametrize("name", SCALED)
def test_models_that_scale_or_cap_their_logits(name: str, sharing: None) -> None:
    model = build(SCALED[name]).eval()
    probe_sharing(model)  # does not refuse it
    prompts, batch = one_and_five()
    with torch.no_grad():
        right, _ = plain(model, prompts, batch, 0.7)
        for shared in {False, probe_sharing(model)}:
            assert torch.allclose(Policy(model, 0.7, shared)(*batch[:4])[0], right, atol=1e-5, rtol=0)
        bare = model.get_output_embeddings()(model.base_model(torch.tensor([prompts[1]])).last_hidden_state)
        assert (bare - model(torch.tensor([prompts[1]])).logits).abs().max() > 0.1  # the head alone is not enough


WINDOWED = {
    "mistral": MistralConfig(**LLAMA, initializer_range=0.4, sliding_window=16),
    "gemma3": Gemma3TextConfig(**LLAMA, initializer_range=0.4, sliding_window=16),
}


@pytest.mark.parametrize("prompt_lengths", [(30, 20), (12, 9), (5, 1)])
@pytest.mark.parametrize("name", WINDOWED)
def test_a_sliding_window_is_kept_where_prompts_could_be_shared(
    name: str, prompt_lengths: tuple[int, ...], sharing: None
) -> None:
    """The window is wider than the probe's rows and narrower than the longest here: no mask of ours may widen it."""
    model = build(WINDOWED[name]).eval()
    prompts, batch = responses_of(prompt_lengths, ((4, 2, 3), (4, 3, 2)), longest=4)
    shared = probe_sharing(model)
    with torch.no_grad():
        right, _ = plain(model, prompts, batch, 1.0)
        assert torch.allclose(Policy(model, 1.0, shared)(*batch[:4])[0], right, atol=1e-5, rtol=0)


def test_a_model_that_does_more_than_its_head_is_refused() -> None:
    class Doubled(LlamaForCausalLM):
        def forward(self, *args: Any, **rest: Any) -> Any:
            output = super().forward(*args, **rest)
            output.logits = 2 * output.logits
            return output

    torch.manual_seed(0)
    with pytest.raises(SystemExit, match="does more to its logits than its head does"):
        probe_sharing(Doubled(CONFIGS["llama"]).eval())


# -------- dropout, and the ratio of a step's first update --------


def test_the_checkpoints_here_would_drop_out(folders: dict[str, Path]) -> None:
    """Without this, the next test could pass with nothing done about dropout."""
    for folder in folders.values():
        model = AutoModelForCausalLM.from_pretrained(folder).train()
        row = torch.tensor([[5, 6, 7, 8]])
        assert not torch.equal(model(row).logits, model(row).logits)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("shared", [True, False])
def test_two_forward_passes_in_train_mode_give_a_ratio_of_exactly_1(
    model: PreTrainedModel, sharing: None, shared: bool, bf16: bool
) -> None:
    _, batch = one_and_five()
    policy = Policy(model, 0.6, shared).train()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        old = token_logprobs(policy, batch, at_once=2)
        logprobs, _ = policy(*batch[:4])
    assert logprobs.requires_grad and logprobs.dtype == torch.float32
    assert torch.equal((logprobs - old).exp(), torch.ones_like(old))


# -------- what is sampled is what is scored --------


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_a_sampled_token_has_the_log_prob_that_it_was_sampled_with(
    model: PreTrainedModel, sharing: None, monkeypatch: pytest.MonkeyPatch, temperature: float, shared: bool
) -> None:
    assert_sampled_as_scored(model, monkeypatch, temperature, shared, prompt_lengths=(1, 5))


@pytest.mark.parametrize("name", WINDOWED)
def test_that_holds_beyond_a_sliding_window_too(name: str, sharing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_sampled_as_scored(build(WINDOWED[name]).train(), monkeypatch, 1.0, True, prompt_lengths=(20, 30))


def assert_sampled_as_scored(
    model: PreTrainedModel,
    monkeypatch: pytest.MonkeyPatch,
    temperature: float,
    shared: bool,
    prompt_lengths: tuple[int, ...],
) -> None:
    """`scores` of generate is the distribution that it sampled from, after everything that changed the logits."""
    scores: list[Tensor] = []

    def recording(*args: Any, **rest: Any) -> Tensor:
        output = type(model).generate(model, *args, **rest, output_scores=True, return_dict_in_generate=True)
        scores.append(torch.stack(output.scores, 1).log_softmax(-1))  # [B G, T, V]
        return output.sequences

    monkeypatch.setattr(model, "generate", recording)
    torch.manual_seed(0)
    prompts = [{"ids": [3 + (7 * i) % 12 for i in range(length)]} for length in prompt_lengths]
    config = generation_config([7, 9], PAD, 6, temperature)
    sampled = respond(model, *pad_left(prompts, PAD, CPU), 4, config, at_once=2, shared=shared)
    assert model.training  # the update that follows is in train mode
    assert sampled.mask_BGT.sum() > 16 and len(sampled.tokens_BGT.unique()) > 3

    shape = (*sampled.tokens_BGT.shape, VOCABULARY)
    was = scores[0].view(shape).gather(-1, sampled.tokens_BGT[..., None])[..., 0].masked_fill(~sampled.mask_BGT, 0.0)
    logprobs = token_logprobs(Policy(model, temperature, shared), sampled, at_once=1)
    assert torch.allclose(logprobs, was, atol=1e-5, rtol=0)


OPINIONATED = {
    "do_sample": True,
    "temperature": 0.1,
    "top_k": 1,
    "top_p": 0.1,
    "min_p": 0.5,
    "repetition_penalty": 5.0,
    "suppress_tokens": [5, 6],
    "begin_suppress_tokens": [7],
    "min_new_tokens": 3,
    "eos_token_id": [2, 9],
    "pad_token_id": 0,
}


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_what_a_checkpoint_says_of_sampling_does_not_act(
    folders: dict[str, Path], tmp_path: Path, temperature: float
) -> None:
    """Its generation_config.json would leave one token; the whole distribution is sampled, at our temperature."""
    reference = AutoModelForCausalLM.from_pretrained(folders["llama"]).eval()
    reference.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(OPINIONATED))
    model, eos_ids = load_policy(str(tmp_path))
    assert eos_ids == [2, 9]

    torch.manual_seed(0)
    count, prompt = 4000, [5, 7, 8]
    config = generation_config(eos_ids, PAD, 1, temperature)
    tokens = generate(model.eval(), *pad_left([{"ids": prompt}], PAD, CPU), count, config, shared=True)
    assert tokens.shape == (1, count, 1)
    probabilities = (reference(torch.tensor([prompt])).logits[0, -1] / temperature).softmax(-1)
    assert probabilities.max() < 0.9 and (probabilities * count > 5).sum() > 5
    frequencies = torch.bincount(tokens.flatten(), minlength=VOCABULARY) / count
    error = (probabilities * (1 - probabilities) / count).sqrt()
    assert ((frequencies - probabilities).abs() < 5 * error + 1 / count).all()


def test_greedy_responses_take_the_most_likely_token(model: PreTrainedModel) -> None:
    """Each prompt's is that of the prompt alone, and repeats."""
    prompts, config = [[5], [6, 7, 8, 9, 10]], generation_config([EOS], PAD, 5, temperature=0.0)
    batch = respond(model, *pad_left([{"ids": ids} for ids in prompts], PAD, CPU), 1, config, at_once=2, shared=True)
    model.eval()
    for prompt, tokens, mask in zip(prompts, batch.tokens_BGT[:, 0], batch.mask_BGT[:, 0], strict=True):
        row = list(prompt)
        for token in tokens[mask].tolist():
            assert token == int(model(torch.tensor([row])).logits[0, -1].argmax())
            row.append(token)


@pytest.mark.parametrize("family", CONFIGS)
def test_each_prompt_is_prefilled_once(folders: dict[str, Path], family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, eos_ids = load_policy(str(folders[family]))
    sizes, forward = [], model.base_model.forward

    def counting(input_ids: Tensor, *args: Any, **rest: Any) -> Any:
        sizes.append(tuple(input_ids.shape))
        return forward(input_ids, *args, **rest)

    monkeypatch.setattr(model.base_model, "forward", counting)
    prompts = pad_left([{"ids": [5]}, {"ids": [6, 7, 8, 9, 10]}], PAD, CPU)
    respond(model, *prompts, 3, generation_config(eos_ids, PAD, 2, 1.0), at_once=2, shared=True)
    assert sizes[0] == (2, 4) and set(sizes[1:]) == {(6, 1)}


# -------- where responses end --------


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Responses]:
    """`respond`, with the given tokens in place of generated ones; each part is a list of rows for one prompt."""

    def answer(*parts: list[list[int]], eos: list[int], pad: int) -> Responses:
        tokens = iter(parts)
        monkeypatch.setattr(rollouts, "generate", lambda *args: torch.tensor([next(tokens)]))
        ids, mask = torch.ones(len(parts), 2).long(), torch.ones(len(parts), 2).bool()
        config = generation_config(eos, pad, 4, 1.0)
        return respond(torch.nn.Identity(), ids, mask, len(parts[0]), config, at_once=1, shared=True)

    return answer


def test_every_eos_id_ends_a_response_and_belongs_to_it(answering: Callable[..., Responses]) -> None:
    batch = answering([[3, 7, 0, 0], [3, 4, 9, 0], [7, 0, 0, 0], [3, 4, 5, 6], [3, 4, 5, 9]], eos=[7, 9], pad=0)
    assert batch.mask_BGT[0].int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]
    assert batch.ended_BG.tolist() == [[True, True, True, False, True]]


def test_a_pad_that_is_the_eos_still_counts_once(answering: Callable[..., Responses]) -> None:
    batch = answering([[5, 2, 2, 2], [2, 2, 2, 2], [5, 6, 7, 8]], eos=[2], pad=2)
    assert batch.mask_BGT[0].int().tolist() == [[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]]
    assert batch.ended_BG.tolist() == [[True, True, False]]


def test_a_pad_that_is_sampled_is_a_token(answering: Callable[..., Responses]) -> None:
    """The pad's id inside a response, before its end, was sampled like any other."""
    batch = answering([[5, 0, 6, 2], [0, 0, 2, 0]], eos=[2], pad=0)
    assert batch.mask_BGT[0].int().tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]


def test_parts_of_other_lengths_are_padded_to_the_longest(answering: Callable[..., Responses]) -> None:
    batch = answering([[5, 2], [2, 0]], [[3, 4, 5, 6], [3, 4, 2, 0]], eos=[2], pad=0)
    assert batch.tokens_BGT.tolist() == [[[5, 2, 0, 0], [2, 0, 0, 0]], [[3, 4, 5, 6], [3, 4, 2, 0]]]
    assert batch.mask_BGT.int().tolist() == [[[1, 1, 0, 0], [1, 0, 0, 0]], [[1, 1, 1, 1], [1, 1, 1, 0]]]
    assert batch.ended_BG.tolist() == [[True, True], [False, True]]


def test_a_model_stops_at_each_of_its_eos_ids(model: PreTrainedModel) -> None:
    torch.manual_seed(1)
    config = generation_config([7, 9], PAD, 8, 1.5)
    batch = respond(model, *pad_left([{"ids": [5, 6]}], PAD, CPU), 200, config, at_once=1, shared=True)
    tokens, mask, ended = batch.tokens_BGT[0], batch.mask_BGT[0], batch.ended_BG[0]
    last = tokens[torch.arange(200), mask.sum(-1) - 1]
    assert {7, 9} <= set(last[ended].tolist()) and set(last[ended].tolist()) <= {7, 9}
    assert (mask.sum(-1)[~ended] == 8).all() and 0 < ended.sum() < 200
    assert (tokens[~mask] == PAD).all()


def test_a_checkpoint_without_an_eos_is_refused(tmp_path: Path) -> None:
    build(LlamaConfig(**(LLAMA | {"eos_token_id": None}))).save_pretrained(tmp_path)
    with pytest.raises(SystemExit, match="no eos_token_id"):
        load_policy(str(tmp_path))


# -------- the data --------


@pytest.mark.parametrize(("total", "count"), [(10, 2), (10, 4), (7, 3), (3, 5)])
def test_every_epoch_is_a_permutation_of_the_rows(total: int, count: int) -> None:
    rows = [{"prompt": str(number)} for number in range(total)]
    taken = [row["prompt"] for step in range(total) for row in rows_of_step(rows, step, count, seed=3)]
    epochs = [taken[start : start + total] for start in range(0, total * count, total)]
    assert all(sorted(epoch) == sorted(row["prompt"] for row in rows) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1  # other orders in other epochs


def test_the_rows_of_a_step_depend_on_nothing_but_the_step_and_the_seed() -> None:
    rows = [{"prompt": str(number)} for number in range(20)]
    forwards = [rows_of_step(rows, step, 6, seed=5) for step in range(8)]
    torch.manual_seed(99)
    assert [rows_of_step(rows, step, 6, seed=5) for step in reversed(range(8))] == forwards[::-1]
    assert rows_of_step(rows, 0, 6, seed=6) != forwards[0]


CHAT = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}={% endfor %}{% if add_generation_prompt %}0{% endif %}"


@pytest.fixture
def tokenizer() -> Any:
    """A tokenizer that puts a BOS before every text, and whose chat template writes one too."""
    tokenizer = character_tokenizer("0123456789=", 64)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    tokenizer.chat_template = CHAT
    return tokenizer


def test_a_prompt_begins_with_one_bos(tokenizer: Any) -> None:
    chat = [{"role": "user", "content": "12"}, {"role": "user", "content": "3"}]
    text, messages = tokenize([{"prompt": "12="}, {"prompt": chat, "answer": "x"}], tokenizer, 64)
    assert tokenizer.convert_ids_to_tokens(text["ids"]) == ["<bos>", "1", "2", "="]
    assert tokenizer.convert_ids_to_tokens(messages["ids"]) == ["<bos>", "1", "2", "=", "3", "=", "0"]
    assert messages["answer"] == "x" and messages["prompt"] == chat


def test_prompts_that_are_too_long_or_empty_are_left_out_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = character_tokenizer("0123456789=", 64)
    rows = [{"prompt": prompt} for prompt in ("12", "123", "1234", "")]
    assert [row["prompt"] for row in tokenize(rows, tokenizer, longest=3)] == ["12", "123"]
    assert capsys.readouterr().out == "2 of 4 prompts are empty or longer than 3 tokens and are left out\n"
    with pytest.raises(SystemExit, match="--max_prompt_length"):
        tokenize(rows, tokenizer, longest=1)


def test_nothing_is_said_where_every_prompt_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(tokenize([{"prompt": "12"}], character_tokenizer("0123456789=", 64), longest=2)) == 1
    assert capsys.readouterr().out == ""


def test_rows_of_a_file_keep_their_columns_and_blank_lines_do_not_count(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "1=", "answer": "1"}\n\n{"prompt": "2=", "n": [3, null]}\n', encoding="utf-8")
    assert load_rows(str(data), "train_data") == [{"prompt": "1=", "answer": "1"}, {"prompt": "2=", "n": [3, None]}]


def test_a_text_with_every_kind_of_line_break_is_one_row(tmp_path: Path) -> None:
    """JSON allows U+2028 and others inside a string, and a JSONL writer leaves them as they are."""
    data = tmp_path / "data.jsonl"
    row = {"prompt": "a\u2028b\u2029c\x85d"}
    data.write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    assert load_rows(str(data), "train_data") == [row]


def test_a_dataset_folder_can_be_read_too(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list([{"prompt": "1=", "answer": "1"}])
    data.save_to_disk(str(tmp_path / "data"))
    assert load_rows(str(tmp_path / "data"), "train_data") == [{"prompt": "1=", "answer": "1"}]


def test_a_tokenizer_without_a_pad_uses_its_eos(tmp_path: Path) -> None:
    tokenizer = character_tokenizer("0123456789=", 64)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(str(tmp_path))
    assert loaded.pad_token_id == loaded.eos_token_id == EOS
