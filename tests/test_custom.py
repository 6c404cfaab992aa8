"""Functions of an author's own: they go into the script as they are, do there what they say, and are verified."""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from conftest import load_module
from fuzz import examine
from hypothesis import HealthCheck, Phase, given, settings
from strategies import OWN, OWN_FUNCTIONS, own, script_of, specs_with_own
from test_training import run

from specc.cli import main
from specc.compiler import compile_spec
from specc.custom import REFERENCE
from specc.demo import DemoFiles
from specc.finish import finish
from specc.plan import Plan
from specc.problems import SpecError
from specc.render import render
from specc.spec import Spec
from specc.verify.laws import check_laws, estimate, family, loss_and_gradient, make_batch
from specc.verify.run import verify
from specc.verify.script import Script, load_script

PLAIN: dict[str, Any] = {
    "reward": "verifier",
    "kl": "none",
    "baseline": "none",
    "normalization": "none",
    "objective": {"quantity": "sequence_advantage", "aggregation": "seq_mean_token_sum"},
    "sampling": {"group_size": 4},
}
OF_TOKENS = {"quantity": "token_advantage", "aggregation": "token_mean"}
KL = {"placement": "reward", "coefficient": 0.1}
CLIP = {"quantity": "sequence_advantage", "aggregation": "token_mean", "ratio": "token"}


def spec_of(**answers: Any) -> Spec:
    return Spec.model_validate({"name": "own", **PLAIN, **answers})


def baseline(name: str, **arguments: float) -> dict[str, Any]:
    return {"source": "custom", "function": own(name), "arguments": arguments}


def normalization(name: str, **arguments: float) -> dict[str, Any]:
    return {"scope": "custom", "function": own(name), "arguments": arguments}


def text_of(spec: Spec) -> str:
    return render(Plan(spec), "own.yaml", "0" * 16)


# -------- what goes into the script --------


def test_a_function_is_in_the_script_as_it_is_written() -> None:
    """With what it uses and the comments above that, and nothing else of its file."""
    text, written = text_of(spec_of(baseline=baseline("leave_one_out"))), OWN.read_text(encoding="utf-8")
    for name in ("mean_of", "leave_one_out"):
        assert definition(written, name) in text
    assert "# The mean over a dimension of what counts.\ndef mean_of(" in text
    for other in ("group_mean", "shrunk", "TINY", "Bounds", "logsigmoid"):
        assert other not in text
    assert "advantages_BG = returns_BG - leave_one_out(returns_BG, scored_BG)" in text


def definition(source: str, name: str) -> str:
    (node,) = (node for node in ast.parse(source).body if getattr(node, "name", "") == name)
    return ast.get_source_segment(source, node) or ""


def test_what_two_functions_use_is_there_once() -> None:
    spec = spec_of(
        reward={"source": "verifier", "transform": own("squashed")},
        baseline=baseline("shrunk", power=2),
        normalization=normalization("group_std"),
    )
    defined = [node.name for node in ast.parse(text_of(spec)).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert len(defined) == len(set(defined)) and {"mean_of", "Bounds", "group_std"} <= set(defined)


def test_the_numbers_of_a_function_are_arguments() -> None:
    spec = spec_of(
        reward={"source": "verifier", "transform": {"function": own("clipped"), "arguments": {"high": 2}}},
        baseline=baseline("shrunk", share=0.25),
        objective={**CLIP, "loss": own("ppo"), "token_weight": {"function": own("uncertain")}},
    )
    hp = script_of(spec).hp
    found = {name: value for name, value in vars(hp).items() if name.startswith(("baseline", "reward", "loss", "tok"))}
    assert found == {
        "reward_transform_low": -10.0,
        "reward_transform_high": 2.0,
        "baseline_share": 0.25,
        "baseline_power": 1,
        "loss_low": 0.2,
        "loss_high": 0.2,
        "token_weight_sharpness": 1.0,
    } | {name: found[name] for name in found if name == "reward"}
    assert isinstance(hp.reward_transform_high, float)


def write(folder: Path, functions: str, *, name: str = "own.yaml", function: str = "mine.py::mine") -> Path:
    (folder / "mine.py").write_text(functions, encoding="utf-8")
    spec = {"name": "own", **PLAIN, "baseline": {"source": "custom", "function": function}}
    (folder / name).write_text(json.dumps(spec), encoding="utf-8")
    return folder / name


MINE = '"""Mine."""\n\n\ndef mine(returns_BG):\n    """Half of it."""\n    return 0.5 * returns_BG\n'


def test_the_script_says_where_a_function_is_from(tmp_path: Path) -> None:
    """By the names of both files and their hashes, so that a change of either is seen, and no folder's name."""
    path = write(tmp_path, MINE)
    first = compile_spec(path)
    again = compile_spec(path)
    assert first.script == again.script and str(tmp_path) not in first.script
    assert "baseline      Half of it (mine of mine.py)" in first.script
    write(tmp_path, MINE.replace("Mine.", "Mine, changed."))
    assert compile_spec(path).script != first.script


def test_a_path_is_from_the_folder_of_the_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And messages name the file from the current folder."""
    folder = tmp_path / "inner"
    folder.mkdir()
    write(folder, MINE)
    monkeypatch.chdir(tmp_path)
    assert "def mine(" in compile_spec("inner/own.yaml").script
    write(folder, MINE.replace("0.5", "half"))
    with pytest.raises(SpecError, match=r"^inner/mine\.py:6:12: error\[custom-undefined-name\]"):
        compile_spec("inner/own.yaml")


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ("import torch as t\n\n\ndef mine(returns_BG):\n    return t.zeros_like(returns_BG)\n", "import torch as t"),
        ("from math import pi, tau\n\n\ndef mine(returns_BG):\n    return tau * returns_BG\n", "from math import tau"),
        ("def mine(returns_BG):\n    import cmath\n\n    return cmath.pi * returns_BG\n", "    import cmath"),
        ("HALF: float = 0.5\n\n\ndef mine(returns_BG):\n    return HALF * returns_BG\n", "HALF: float = 0.5"),
        ("def mine(returns_BG):\n    return sum(x for x in [returns_BG])\n", "sum(x for x in [returns_BG])"),
        ("def mine(returns_BG):\n    return (lambda y: y)(returns_BG)\n", "(lambda y: y)(returns_BG)"),
        ("import torch\n\n\n@torch.no_grad()\ndef mine(returns_BG):\n    return returns_BG\n", "@torch.no_grad()\ndef"),
        ("def mine(returns_BG):\r\n    # für\r\n    return returns_BG\r\n", "# für"),
    ],
)
def test_what_a_function_may_use(body: str, kept: str, tmp_path: Path) -> None:
    compiled = compile_spec(write(tmp_path, body))
    assert kept in compiled.script and "pi, tau" not in compiled.script
    assert "\r" not in compiled.script
    ast.parse(compiled.script)


MEANS_THE_SAME = {
    "several names at once": "A, (B, *C) = 2, (3, 4)\nD = E = A\n\n\ndef mine(x):\n    return B * C[0] * E * x\n",
    "a name within an expression": "A = (B := 3) + 1\n\n\ndef mine(x):\n    return B * x\n",
    "several statements on a line": "import torch; A = 2; B = A + 1; print(end='')\n\n\n"
    "def mine(x):\n    return B * torch.relu(x)\n",
    "breaks of pages": "A = 2\n\x0c\nB = 3\n\x0c\n\ndef mine(x):\n    return A * B * x\n",
    "odd characters in texts": "A = 'a\x0cb\u2028c\x85d'\n# \u2028\n\ndef mine(x):\n    return len(A) * x\n",
    "line breaks of others": "A = '''a\r\nb'''\r\n\r\n\r\ndef mine(x):\r\n    return len(A) * x\r\n",
    "positions only": "def mine(x, /, scored_BG):\n    return scored_BG * x\n",
    "patterns": "def mine(x):\n    match {1: 2, 'b': 3}:\n        case {1: 2, **c}:\n            return c['b'] * x\n",
    "modules of a package": "import xml.dom.minidom\nimport xml.etree.ElementTree as tree\nimport xml.sax\n\n\n"
    "def mine(x):\n    return len(tree.__name__ + xml.dom.minidom.__name__ + xml.sax.__name__) * x\n",
    "a module of torch": "import torch.nn.functional\n\n\ndef mine(x):\n    return torch.nn.functional.relu(x)\n",
    "torch.nn by another import": "import torch.nn as nn\n\n\ndef mine(x):\n    return nn.functional.relu(x)\n",
    "an import that may fail": "def mine(x):\n    try:\n        import cmath\n    except ImportError:\n        pass\n"
    "    return 2 * x\n",
    "a generator inside": "def mine(x):\n    def two():\n        yield 2\n\n    return sum(two()) * x\n",
    "lazy annotations": "from __future__ import annotations\n\n\n"
    "def mine(x):\n    annotations = 2\n    return annotations * x\n",
    "what is not run": "A = 2\n\n\ndef mine(x):\n    return A * x\n\n\nif __name__ == '__main__':\n    A = 3\n",
    "a decorator": "def twice(f):\n    return lambda y: 2*f(y)\n\n\n@twice  # 2\n@twice\ndef mine(x):\n    return x\n",
    "an odd escape": "def mine(x):\n    return len('\\d') * x\n",
    "a number called as a tensor": "def mine(x, *, mask_BGT: float = 3,hp: 'int' = 2):\n    return mask_BGT + hp + x\n",
}


@pytest.mark.parametrize("body", MEANS_THE_SAME.values(), ids=MEANS_THE_SAME)
def test_a_function_means_in_the_script_what_it_means_in_its_file(body: str, tmp_path: Path) -> None:
    path = write(tmp_path, "")
    (tmp_path / "mine.py").write_bytes(re.sub(r"\bx\b", "returns_BG", body).encode())
    script = load_script(compile_spec(path).script, "own.py")
    batch = make_batch(3, 2, 4, 3, spread=1.0)
    scored_BG = batch.rewards_BG.isfinite()
    returns_BG = batch.rewards_BG.masked_fill(~scored_BG, 0.0)
    mine = load_module(tmp_path / "mine.py").mine
    baseline_BG = mine(returns_BG, scored_BG) if "scored_BG" in body else mine(returns_BG)
    got_BGT = script.module.compute_advantages(batch.rollouts(script.module), script.hp)
    wanted_BGT = (returns_BG - baseline_BG)[..., None].expand(batch.mask_BGT.shape)
    valid_BGT = scored_BG[..., None] & batch.mask_BGT
    torch.testing.assert_close(got_BGT[valid_BGT], wanted_BGT[valid_BGT])


RETURNS = "\n\n\ndef mine(returns_BG):\n    return {} * returns_BG\n"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("A = 2\nA += 1" + RETURNS.format("A"), "2:1.*`A` is bound by a statement"),
        ("A = 2\nB = A\nA = 3" + RETURNS.format("B"), "3:1.*`A` is bound a second"),
        ("A = [2]\nA.append(1)" + RETURNS.format("A[0]"), "2:1.*may change it"),
        ("A = [2]\nA[0] = 1" + RETURNS.format("A[0]"), "2:1.*may change it"),
        ("A = [2]\n\n\ndef fill():\n    A.append(1)\n\n\nfill()" + RETURNS.format("A[0]"), "8:1.*may change it"),
        ("A = 2\n\n\ndef fill():\n    global A\n    A = 1\n\n\nfill()" + RETURNS.format("A"), "5:5.*`A` is bound by"),
        ("for max in [1]:\n    pass" + RETURNS.format("max"), "1:1.*`max` is bound by"),
        ("from torch import *" + RETURNS.format("sum([1, 2])"), "1:1.*may bind any name"),
        ("A = 2" + RETURNS.format("eval('A')"), "5:12.*`eval` reaches names"),
        (RETURNS.format("2").lstrip() + "\n\nif True:\n    mine = 3\n", "5:1.*`mine` is bound by"),
        (
            "from __future__ import annotations\n\n\ndef two(x: B):\n    return x\n\n\nclass B:\n    A = 2"
            + RETURNS.format("two(B).A"),
            "4:12.*`B` has no meaning yet",
        ),
        (
            "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from torch import Tensor\n\n\n"
            "def mine(returns_BG: Tensor):\n    return returns_BG\n",
            "3:1.*for type checkers only",
        ),
        ("def two(x, x):\n    return x" + RETURNS.format("two(1, 2)"), "1:.*not valid Python"),
        ("return 1" + RETURNS.format("2"), "1:1.*not valid Python"),
        ("def mine(returns_BG, *, n: int = 2.5):\n    return n * returns_BG\n", "1:25.*not a whole number"),
        ("def mine(returns_BG, *, n: float = 1e999):\n    return n * returns_BG\n", "1:25.*not a finite one"),
        (f"def mine(returns_BG, *, n: float = 1{'0' * 400}):\n    return n * returns_BG\n", "1:25.*not a finite one"),
    ],
)
def test_what_would_mean_something_else_is_refused(body: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=rf"mine\.py:{said}"):
        compile_spec(write(tmp_path, body))


def test_names_of_another_file(tmp_path: Path) -> None:
    """Two files that call two things by one name."""
    for name, number in (("a", 1), ("b", 2)):
        text = f"def helper(x):\n    return {number} * x\n\n\ndef {name}(returns):\n    return helper(returns)\n"
        (tmp_path / f"{name}.py").write_text(text.replace("returns", "returns_BG" if name == "a" else "advantages"))
    answers = {
        "baseline": {"source": "custom", "function": "a.py::a"},
        "normalization": {"scope": "custom", "function": "b.py::b"},
    }
    path = tmp_path / "own.yaml"
    path.write_text(json.dumps({"name": "own", **PLAIN, **answers}))
    with pytest.raises(SpecError, match=r"b\.py:1:1: error\[custom-name-taken\]: the name `helper` is one of .*a\.py"):
        compile_spec(path)


def test_a_new_spec_names_the_function_from_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, MINE)
    spec = json.loads((tmp_path / "own.yaml").read_text())
    (tmp_path / "own.yaml").write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in spec.items()))
    monkeypatch.chdir(tmp_path)
    for output, named in (("inner/", "../mine.py::mine"), ("fresh.yaml", "mine.py::mine")):
        done = CliRunner().invoke(main, ["new", "fresh", "--from", "own.yaml", "-o", output])
        assert done.exit_code == 0, done.output
        path = Path("inner/fresh.yaml" if output == "inner/" else output)
        assert f'"{named}"' in path.read_text(encoding="utf-8")
        assert "def mine(" in compile_spec(path).script


@pytest.mark.parametrize("value", ["true", ".inf", "'0.5'", "null", "[1]"])
def test_what_is_no_number_is_said_once(value: str, tmp_path: Path) -> None:
    path = write(tmp_path, "def mine(returns_BG, *, share: float = 0.5):\n    return share * returns_BG\n")
    asked = path.read_text().replace('"mine.py::mine"', f'"mine.py::mine", "arguments": {{"share": {value}}}')
    path.write_text(asked)
    with pytest.raises(SpecError, match="is no number that an argument can have") as caught:
        compile_spec(path)
    assert len(caught.value.problems) == 1


def test_files_of_the_same_name(tmp_path: Path) -> None:
    """The script has the hashes of both."""
    for folder, asks in (("a", "returns_BG"), ("b", "advantages")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(f"def {folder}({asks}):\n    return {asks}\n")
    answers = {
        "baseline": {"source": "custom", "function": "a/mine.py::a"},
        "normalization": {"scope": "custom", "function": "b/mine.py::b"},
    }
    path = tmp_path / "own.yaml"
    path.write_text(json.dumps({"name": "own", **PLAIN, **answers}))
    assert compile_spec(path).script.count("mine.py, sha256 ") == 2


def test_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    for name in ("folder", "pipe"):
        with pytest.raises(SpecError, match=rf"{name}\.py cannot be read"):
            compile_spec(write(tmp_path, "", function=f"{name}.py::mine"))


def test_a_number_may_have_a_name_that_python_keeps(tmp_path: Path) -> None:
    path = write(tmp_path, "def mine(returns_BG, *, lambda_: float = 1.0):\n    return lambda_ * returns_BG\n")
    assert "baseline_lambda_: float" in compile_spec(path).script


def test_the_compiler_runs_no_function(tmp_path: Path) -> None:
    trap = f"open({str(tmp_path / 'trap')!r}, 'w')\n"
    body = f"import torch\n\n{trap}\n\ndef mine(returns_BG, *, share: float = 0.5):\n    {trap}    return returns_BG\n"
    compile_spec(write(tmp_path, body))
    assert not (tmp_path / "trap").exists()


# -------- what it does there --------


SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"baseline": baseline("group_mean")}, {"baseline": "group_mean"}),
    ({"baseline": baseline("leave_one_out")}, {"baseline": "leave_one_out"}),
    ({"baseline": baseline("greedy")}, {"baseline": "greedy"}),
    (
        {"baseline": baseline("leave_one_out"), "objective": OF_TOKENS, "kl": KL},
        {"baseline": "leave_one_out", "objective": OF_TOKENS, "kl": KL},
    ),
    ({"baseline": baseline("shrunk", share=1)}, {"baseline": "group_mean"}),
    (
        {"baseline": "group_mean", "normalization": normalization("group_std")},
        {"baseline": "group_mean", "normalization": "group"},
    ),
    (
        {"normalization": normalization("group_std"), "objective": OF_TOKENS, "kl": KL},
        {"normalization": {"scope": "group", "unit": "token"}, "objective": OF_TOKENS, "kl": KL},
    ),
    ({"normalization": normalization("asymmetric", negative=1)}, {}),
    (
        {"objective": {**CLIP, "loss": {"function": own("ppo"), "arguments": {"high": 0.3}}}},
        {"objective": {**CLIP, "clip": {"low": 0.2, "high": 0.3}}},
    ),
    ({"objective": {**PLAIN["objective"], "loss": own("reinforce"), "ratio": "none"}}, {}),
    ({"objective": {**PLAIN["objective"], "token_weight": own("ones")}}, {}),
]


@pytest.mark.parametrize(("mine", "ours"), SAME, ids=[str(number) for number in range(len(SAME))])
def test_what_says_the_same_does_the_same(mine: dict[str, Any], ours: dict[str, Any]) -> None:
    """A function that is written out like one of our answers gives the estimates of that answer, on every batch."""
    (left, right) = (script_of(spec_of(**answers)) for answers in (mine, ours))
    for batch in family(left, seed=1, count=6):
        for (name, got), want in zip(estimate(left, batch).items(), estimate(right, batch).values(), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")


def test_a_transform_is_the_last() -> None:
    reward = {"source": "verifier", "clip": [-4, 4], "missing_eos": 0.5, "transform": own("squashed")}
    script = script_of(spec_of(reward=reward))
    scores, ended = torch.tensor([[9.0, -1.0, 3.0]], dtype=torch.float64), torch.tensor([[True, True, False]])
    got = script.module.transform_rewards(scores, ended, torch.tensor([[1, 2, 3]]), script.hp)
    torch.testing.assert_close(got, 2 * torch.tanh(torch.tensor([[4.0, -1.0, 0.5]], dtype=torch.float64) / 2))


def test_a_weight_of_tokens_has_no_gradient_itself() -> None:
    """It multiplies what each token adds to the gradient, as if it were a number."""
    objective = {**CLIP, "token_weight": own("near_policy")}
    weighted, plain = script_of(spec_of(objective=objective)), script_of(spec_of(objective=CLIP))
    for batch in family(weighted, seed=2, count=4):
        advantages = torch.ones_like(batch.logprobs_BGT)
        weights = weighted.module.aggregation_weights(batch.mask_BGT, weighted.hp)
        got = loss_and_gradient(weighted, batch, advantages, weights)[1]
        factor = (-(batch.logprobs_BGT - batch.old_logprobs_BGT).abs()).exp()
        want = loss_and_gradient(plain, batch, advantages, weights)[1] * factor
        torch.testing.assert_close(got, want.where(batch.mask_BGT, 0.0), rtol=1e-9, atol=1e-12)


def test_rows_are_skipped_only_where_an_advantage_of_0_has_no_gradient() -> None:
    """A loss of one's own may have one there; a weight multiplies it away."""
    assert Plan(spec_of(objective={**CLIP, "token_weight": own("uncertain")})).skips_rows
    assert not Plan(spec_of(objective={**CLIP, "loss": own("ppo")})).skips_rows


@settings(max_examples=12, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(spec=specs_with_own())
def test_specs_with_functions_of_ones_own(spec: Spec) -> None:
    """Their scripts are linted, keep the laws, and have nothing that is not used."""
    (text,) = finish([text_of(spec)])
    assert examine(spec, text) == []


def test_every_function_is_drawn() -> None:
    """The functions of the file are those that are drawn, and no two others."""
    names = {node.name for node in ast.parse(OWN.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}
    assert {name for every in OWN_FUNCTIONS.values() for name in every} == names - {"mean_of", "greedy"}


# -------- what it is --------


def verified(**answers: Any) -> Any:
    spec = spec_of(**answers)
    script = script_of(spec)
    return verify(Script(script.name, script.module, None, spec.claim), spec.sampling.group_size)


def test_the_median_of_the_group_reweights_prompts() -> None:
    """By hand, k = 4 and 0/1 rewards: the lower median is 1 if three or four are right. d_j = 1, 1, 0, 1 for j others:
    with j = 2 the median of a correct response is 1, and 0 beside a wrong one, so the advantages are 0 and 0."""
    found = verified(baseline=baseline("median"))
    assert (found.judged["binary"].verdict, found.judged["real"].verdict) == ("reweighted", "biased")
    for p in (0.1, 0.5, 0.9):
        assert found.weight.at(p) == pytest.approx(1 - 3 * p**2 * (1 - p))


def test_a_share_of_the_mean_shrinks_the_gradient() -> None:
    found = verified(baseline=baseline("shrunk", share=0.5))
    assert found.overall == "proportional" and found.weight.at(0.5) == pytest.approx(1 - 0.5 / 4)


def test_asymmetric_scaling_is_refuted_and_its_fix_holds(tmp_path: Path) -> None:
    """A claim about what only running tells is not judged when it is compiled, and is when it is verified."""
    path = tmp_path / "asymmetric.yaml"
    data = {"name": "asymmetric", "claim": "unbiased", **PLAIN, "baseline": "leave_one_out"}
    path.write_text(json.dumps({**data, "normalization": normalization("asymmetric")}))
    compiled = CliRunner().invoke(main, ["compile", str(path), "-o", str(tmp_path / "out.py"), "--strict"])
    assert compiled.exit_code == 0, compiled.output
    assert "not derived" in CliRunner().invoke(main, ["explain", str(path)]).output
    refuted = CliRunner().invoke(main, ["verify", str(path)])
    assert refuted.exit_code == 1 and "The claim `unbiased` is refuted: the estimator is reweighted" in refuted.output
    path.write_text(json.dumps({**data, "normalization": normalization("asymmetric", negative=1)}))
    holds = CliRunner().invoke(main, ["verify", str(path)])
    assert holds.exit_code == 0 and "The claim `unbiased` holds." in holds.output


@pytest.mark.parametrize(
    ("place", "function", "law"),
    [
        ("baseline", "def mine(returns_BG):\n    return returns_BG.mean(1, keepdim=True)\n", "masked_out"),
        ("baseline", "import torch\n\n\ndef mine(returns_BG):\n    return torch.rand(())\n", "estimates_repeat"),
        ("transform", "def mine(rewards_BG):\n    return rewards_BG - rewards_BG.mean()\n", "rewards_are_their_own"),
        ("token_weight", "def mine(mask):\n    return mask / mask.sum()\n", "splits"),
        ("loss", "def mine(logprobs, advantages):\n    return (logprobs * advantages).cumsum(0)\n", "splits"),
    ],
)
def test_a_law_that_a_function_breaks(place: str, function: str, law: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(function)
    named = f"{tmp_path}/mine.py::mine"
    places: dict[str, dict[str, Any]] = {
        "baseline": {"baseline": {"source": "custom", "function": named}},
        "transform": {"reward": {"source": "verifier", "transform": named}},
        "token_weight": {"objective": {**PLAIN["objective"], "token_weight": named}},
        "loss": {"objective": {**PLAIN["objective"], "ratio": "none", "loss": named}},
    }
    script = script_of(spec_of(**places[place]))
    broken = [each.law.name for each in check_laws(Script(script.name, script.module)) if each.verdict == "broken"]
    assert any(law in name for name in broken), broken


def test_laws_that_a_function_has_no_part_in() -> None:
    """A weight of each token is no fault of the ratio's bounds, a flat transform none of a number before it, and a
    normalization none of the critic's advantages."""
    weighted = {**CLIP, "clip": {"low": 0.2, "high": 0.2}, "token_weight": own("near_policy")}
    flat: dict[str, Any] = {
        "source": "verifier",
        "overlong": {"limit": 3, "buffer": 1},
        "transform": {"function": own("clipped")},
    }
    flat["transform"]["arguments"] = {"low": -1, "high": 1}
    critic = spec_of(baseline="critic", normalization=normalization("asymmetric"), objective=OF_TOKENS)
    for spec in (spec_of(objective=weighted), spec_of(reward=flat), critic):
        script = script_of(spec)
        results = check_laws(Script(script.name, script.module))
        assert [each.law.name for each in results if each.verdict == "broken"] == []


# -------- training with it --------


def test_a_script_with_functions_of_ones_own_trains(tiny_demo: DemoFiles, tmp_path: Path) -> None:
    """All five at once, with batches that are used twice, and entropies in the loss."""
    spec = {
        "name": "own",
        "reward": {"source": "verifier", "transform": own("longer_is_worse")},
        "kl": "none",
        "baseline": baseline("median"),
        "normalization": normalization("asymmetric"),
        "objective": {
            "quantity": "sequence_advantage",
            "ratio": "token",
            "aggregation": "token_mean",
            "loss": own("ppo"),
            "token_weight": own("uncertain"),
        },
        "sampling": {"group_size": 4, "minibatches": 2},
    }
    path, script = tmp_path / "own.yaml", tmp_path / "own.py"
    path.write_text(json.dumps(spec))
    script.write_text(compile_spec(path).script, encoding="utf-8")
    rows = run(load_module(script), tiny_demo, tmp_path / "run", steps=2)
    assert [row["grad_norm"] > 0 for row in rows if "grad_norm" in row] == [True, True]


def test_old_logprobs_are_there_without_a_ratio() -> None:
    """What a function asks for is what the script finds."""
    objective = {**PLAIN["objective"], "ratio": "none", "loss": own("smooth")}
    plan = Plan(spec_of(objective=objective, sampling={"group_size": 4, "minibatches": 2}))
    assert plan.uses_old and plan.old_pass == "reused" and not plan.uses_ratio
    assert "old = logprobs.detach() if update == 0 else rows_of(old_logprobs)" in render(plan, "own.yaml", "0")


def test_references() -> None:
    assert REFERENCE.fullmatch("a/b.py::f") and REFERENCE.fullmatch("ä b.py::größe")
    for wrong in ("a.py:f", "a.py::1f", "a::f", "a.py::f()", "a.py::f.g", "::f", "a.py::"):
        assert REFERENCE.fullmatch(wrong) is None
