"""The page on every error and warning, `docs/errors.md`: a wrong spec of `bad_specs/`, what it is told, and the edit.

    python tests/errors.py            prints the page
    python tests/errors.py --write    writes it

`tests/test_errors.py` holds it up to date, makes every edit, and asks for an entry here for each slug of the code.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import ndiff
from pathlib import Path
from textwrap import fill

from specc.load import check
from specc.own_answers import load_answers
from specc.paths import find_spec
from specc.problems import Problem, SpecError, render
from specc.source import SYNTAX, Source, parse, read_source

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "specc"
PAGE = TESTS.parent / "docs" / "errors.md"
SHOWN_AS = "mine.yaml"

FILE, WORDS, CONTRADICTIONS, WARNINGS, OWN, SCRIPTS = GROUPS = (
    "The file and its YAML",
    "Words, types and ranges",
    "Contradictions",
    "Warnings",
    "Functions and answers of your own",
    "Scripts that are verified",
)


@dataclass(frozen=True)
class Entry:
    """What the page says of a slug: when it occurs, and edits that mend the bad spec of this name."""

    when: str
    case: str
    edits: tuple[tuple[str, str], ...] = ()


def entry(when: str, case: str, *edits: tuple[str, str]) -> Entry:
    return Entry(when, case, edits)


ENTRIES = {
    "deprecated": entry(
        "Something is written that is on its way out of the language: it works as before until version 2 of the "
        "language, and the message says what to write in its place. Nothing is, so far.",
        "",
    ),
    # functions and answers of your own
    "custom-arguments": entry(
        "A value is given for a number that the function does not have, or not of its type, or one without a default "
        "is given none. The numbers of a function are its keyword-only parameters.",
        "custom_arguments",
        ("shares: 0.5", "share: 0.5"),
        ("power: 1.5", "power: 2"),
    ),
    "custom-depends": entry(
        "The function would mean something else in the script than in its file. Into the script go definitions and "
        "imports, one for each name that is used, in the order of the file. A name that is bound twice, or changed by "
        "another statement, may be anything; so may what `import *` or `eval` bring; and what is looked up at once "
        "has to be defined above.",
        "custom_depends",
    ),
    "custom-import": entry(
        "What the function uses of its file imports something that a script cannot. A script stands alone, and runs "
        "where torch, transformers and accelerate are, so what is used of another package or of a file beside it is "
        "to be copied into the function's file.",
        "custom_import_of_numpy",
    ),
    "custom-missing": entry(
        "The file is there and does not define such a function by `def` at its top level.",
        "custom_missing",
        ("signature.py::genarator", "numbers.py::shrunk, arguments: {share: 0.5}"),
    ),
    "custom-name-taken": entry(
        "A name that goes into the script with the function is one of the script's own there, of Python's, or of "
        "another file with functions. A function is put there as it is written, so it is to be renamed in its file.",
        "custom_name_taken",
    ),
    "custom-reference": entry(
        "The text does not name a function as file.py::function.",
        "custom_reference",
        ("signature.py:generator", "numbers.py::shrunk, arguments: {share: 0.5}"),
    ),
    "custom-signature": entry(
        "A parameter of the function is none that it can be given. What a function looks at it asks for by the names "
        "of its parameters, which are the ones that the message lists; numbers are keyword-only, and are declared as "
        "`int` or `float`.",
        "custom_signature_unknown_parameter",
    ),
    "custom-state": entry(
        "The function keeps something from call to call. A run that is resumed would not find it, and the verdict is "
        "about what the function makes of what it is given.",
        "custom_state",
    ),
    "custom-syntax": entry("The file with the function is not Python.", "custom_syntax"),
    "custom-undefined-name": entry(
        "The function uses a name that its file neither defines nor imports by name. A `from x import *` does not "
        "count, since it does not say what it brings.",
        "custom_undefined_name",
    ),
    "custom-unreadable": entry(
        "The file with the function cannot be read. Its path is from the folder of the spec.",
        "custom_unreadable",
        ("signatures.py::mean", "numbers.py::shrunk, arguments: {share: 0.5}"),
    ),
    "own-answer": entry(
        "Something in a folder that `--answers` names cannot be an answer: a file that does not import, a class "
        "without what a class of an answer needs, or one without a fragment that fits it. The message says what.",
        "own_answer",
    ),
    "loss-without-ratio": entry(
        "A loss of your own asks for the importance ratio, and the spec has none.",
        "loss_without_ratio",
        ("ratio: none", "ratio: token"),
    ),
    # the file and its YAML
    "bad-key": entry(
        "A key is no word: a number, nothing at all, or a list.",
        "bad_key",
        ("1: one\n", ""),
        (": empty\n", ""),
    ),
    "bad-number": entry(
        "A whole number has more digits than any field takes.", "bad_number", ("4000000000000000000000000000000", "4")
    ),
    "bad-yaml": entry(
        "The text is not YAML: a bracket or a quote is not closed, a colon has no space after it, or a line is "
        "indented otherwise than its block. The message is about the first such place, as what follows cannot be read.",
        "bad_yaml_no_space",
        ("kl:none", "kl: none"),
    ),
    "control-character": entry(
        "The text holds a character that is not visible, such as a zero byte or one that turns the direction of "
        "writing, be it as an escape in double quotes.",
        "control_character",
        ("a\u202eb", "ab"),
    ),
    "duplicate-key": entry(
        "A key is there twice in one block.",
        "duplicate_key",
        ("kl: none\n", ""),
        ("group_size: 4, ", ""),
    ),
    "empty-file": entry("The file holds nothing but comments.", "empty_file"),
    "not-a-mapping": entry(
        "The file is a list or a single value.",
        "not_a_mapping",
        (
            "- verifier\n- none\n- group_mean\n",
            "name: example\nreward: verifier\nkl: none\nbaseline: group_mean\nnormalization: none\n"
            "objective: {quantity: sequence_advantage, aggregation: seq_mean_token_sum}\nsampling: {group_size: 4}\n",
        ),
    ),
    "not-plain-data": entry(
        "The file has an anchor, an alias, a merge key, a tag or a YAML directive. A spec says each thing where it is.",
        "not_plain_data",
        ("&name example", "example"),
        ("*name", "example"),
        ("!!str 3", '"3"'),
        ("{<<: {group_size: 4}}", "{group_size: 4}"),
    ),
    "not-utf8": entry("The file is in another encoding than UTF-8, or is no text at all.", "not_utf8"),
    "several-documents": entry(
        "The file holds more than one YAML document.",
        "several_documents",
        ("---\n", ""),
    ),
    "tab": entry(
        "A tab stands where YAML allows only spaces, which is before a key.",
        "tab",
        ("\tquantity", "  quantity"),
        ("\taggregation", "  aggregation"),
    ),
    "too-deep": entry("Blocks are nested deeper than 20 levels.", "too_deep"),
    "too-large": entry("The file has more than 100 kB or 2,000 entries.", "too_large"),
    "unreadable-file": entry(
        "There is no such file and no shipped algorithm of this name, it is a folder, or it may not be read.",
        "no_such_file",
    ),
    # words, types and ranges
    "bad-value": entry("The name of a spec is no identifier.", "bad_value", ("my-example", "my_example")),
    "missing-answer": entry(
        "A question has fields and lacks the word that says which answer they are of.",
        "missing_answer",
        ("{decay: 0.9}", "{source: moving_average, decay: 0.9}"),
    ),
    "missing-field": entry(
        "A field that has no default is missing.",
        "missing_field",
        ("kl: loss", "kl: {placement: loss, estimator: k2, unit: sequence, coefficient: 0.05}"),
    ),
    "missing-question": entry(
        "One of the five questions has no answer.",
        "missing_question",
        ("name: example\n", "name: example\nkl: none\nnormalization: none\n"),
    ),
    "out-of-range": entry(
        "A number is outside of its bounds, or is not finite.",
        "zero_for_none",
        ("{placement: reward, coefficient: 0}", "none"),
        (", entropy_bonus: 0", ""),
    ),
    "too-long": entry(
        "A text or a list is longer than fits.", "too_long", ("long_long_long_long_long_long_long_long_long_", "")
    ),
    "unknown-answer": entry(
        "A question is answered by a word that is none of its answers.",
        "unknown_answer",
        ("leave_one_uot", "leave_one_out"),
    ),
    "unknown-choice": entry(
        "A field that takes one of some words has another one.",
        "unknown_choice",
        ("k4", "k2"),
        ("sequense", "sequence"),
    ),
    "unknown-key": entry(
        "A key is no field of the block that it is in.", "misspelt_field", ("coeficient", "coefficient")
    ),
    "unknown-version": entry("The spec is in a later version of the language.", "unknown_version", ("specc: 2\n", "")),
    "wrong-type": entry(
        "A value is of another type than its field takes. Numbers are those of YAML 1.2, so `1e-6` is one; in quotes "
        "it is text. `yes`, `no`, `on` and `off` are text as well.",
        "wrong_type_quoted_number",
        ('"1e-6"', "1e-6"),
    ),
    # contradictions
    "clip-empty": entry(
        "The lower bound of a reward's range is not below the upper one.", "clip_empty", ("[5, -5]", "[-5, 5]")
    ),
    "clip-without-ratio": entry(
        "A clip or a gate is to act on a ratio, and there is none.",
        "clip_without_ratio",
        ("  clip:", "  ratio: token\n  clip:"),
        ("sampling: {group_size: 4}", "sampling: {group_size: 4, minibatches: 4}"),
    ),
    "credit-without-tokens": entry(
        "Single steps of a response are credited, and each response has one advantage for all of its tokens.",
        "credit_without_tokens",
        ("sequence_advantage", "token_advantage"),
    ),
    "critic-credits-steps": entry(
        "A critic goes with the rewards of single steps.",
        "critic_credits_steps",
        ("reward: process_reward", "reward: {source: process_reward, credit: outcome}"),
    ),
    "critic-needs-tokens": entry(
        "A critic, which values every token, goes with one advantage for the whole response.",
        "critic_needs_tokens",
        ("sequence_advantage", "token_advantage"),
    ),
    "critic-without-reward-model": entry(
        "A critic is to start from the reward model, and the reward comes from elsewhere.",
        "critic_without_reward_model",
        ("reward: verifier", "reward: reward_model"),
    ),
    "dead-option": entry(
        "A field has no effect together with the other answers. It is never silently ignored.",
        "dead_option_number",
        (", ddof: 0", ""),
    ),
    "group-of-one": entry(
        "A baseline, a normalization or a selection compares responses to the same prompt, and there is one.",
        "group_of_one",
        (
            "aggregation: seq_mean_token_sum}\n",
            "aggregation: seq_mean_token_sum}\nsampling: {group_size: 4}\n",
        ),
    ),
    "keep-of-steps": entry(
        "Responses are selected by their rewards, and credited with those of their single steps.",
        "keep_of_steps",
        ("{source: process_reward}", "{source: process_reward, credit: outcome}"),
        ("token_advantage", "sequence_advantage"),
    ),
    "keeps-all": entry(
        "A selection keeps as many responses as there are.",
        "keeps_all",
        ("max_variance: 8", "max_variance: 2"),
    ),
    "kl-on-last-token": entry(
        "A KL of whole responses in the reward goes with a lambda of 0, which hands no reward on to earlier tokens.",
        "kl_on_last_token",
        ("gae_lambda: 0", "gae_lambda: 0.95"),
    ),
    "likelihood-of-all": entry(
        "The likelihood of all samples is to be maximized, in which there is no reward.",
        "likelihood_of_all",
        ("group_size: 8", "group_size: 8, keep: best"),
    ),
    "likelihood-without-advantage": entry(
        "A baseline, a normalization or a KL in the reward goes with a likelihood, which has no advantage.",
        "likelihood_without_advantage",
        ("placement: reward", "placement: loss, estimator: k2, unit: sequence"),
        ("greedy", "none"),
        ("normalization: batch", "normalization: none"),
    ),
    "max-length-missing": entry(
        "An aggregation divides by a constant length that is not given.",
        "max_length_missing",
        ("seq_mean_token_sum_norm", "seq_mean_token_sum_norm, max_length: 3000"),
    ),
    "mixed-units": entry(
        "A baseline is of steps and the normalization of responses, or the other way round.",
        "mixed_units",
        ("{scope: group}", "{scope: group, unit: step}"),
    ),
    "normalizes-nothing": entry(
        "A normalization neither subtracts nor divides.",
        "normalizes_nothing",
        ("divide_by: none", "divide_by: none, subtract_mean: true"),
    ),
    "overlong-buffer": entry(
        "The buffer of the overlong penalty is longer than its limit.",
        "overlong_buffer",
        ("buffer: 200", "buffer: 20"),
    ),
    "pairs-and-rollouts": entry(
        "An answer that is for pairs of given responses goes with one for sampled responses.",
        "pairs_and_rollouts",
        ("reward: verifier", "reward: preferences"),
        ("group_mean", "pair"),
    ),
    "pretraining-moves-policy": entry(
        "A critic that shares the policy's backbone is to be pretrained, which would move the policy.",
        "pretraining_moves_policy",
        ("backbone: shared", "backbone: own"),
    ),
    "sequence-ratio-token-advantage": entry(
        "One ratio for the whole response is to weight an advantage for each token.",
        "sequence_ratio_token_advantage",
        ("ratio: sequence,", "ratio: sequence_mean_token,"),
    ),
    "token-clip-without-product": entry(
        "A bound on each token's part of a product goes with a ratio that is no product.",
        "token_clip_without_product",
        ("ratio: token\n", "ratio: sequence_mean\n"),
    ),
    "transform-of-steps": entry(
        "A transform of a response's score goes with the scores of single steps.",
        "transform_of_steps",
        (", clip: [-1, 1], missing_eos: -1", ""),
    ),
    "two-weightings": entry(
        "Two clips or gates are to act on one ratio.",
        "two_weightings",
        ("  soft_gate: {}\n", ""),
    ),
    "unit-without-steps": entry(
        "A statistic is to be over steps, and no single step is rewarded.",
        "unit_without_steps",
        ("reward: verifier", "reward: {source: process_reward, credit: process}"),
        ("sequence_advantage", "token_advantage"),
    ),
    # warnings
    "accept-unused": entry(
        "`accept` names a warning that does not occur, or names it twice.",
        "accept_unused",
        ("[token-advantage-constnat, group-of-one]", "[token-advantage-constant]"),
    ),
    "adaptive-lambda-zero": entry(
        "A length-adaptive lambda is below 1/2 for the longest response that can be: it is made for longer ones.",
        "adaptive_lambda_zero",
        ("alpha: 0.05", "alpha: 1.25"),
    ),
    "claim-refuted": entry(
        "The spec claims another verdict than the one that follows from its answers.",
        "claim_refuted",
        ("claim: unbiased", "claim: biased"),
    ),
    "clip-idle": entry(
        "A clip is in a spec that uses each batch once. It acts only in runs with more epochs or minibatches.",
        "clip_idle",
        ("sampling: {group_size: 4}", "sampling: {group_size: 4, minibatches: 4}"),
    ),
    "clip-of-token-scale": entry(
        "The ratio is a mean over the response, and the clip is as wide as one for single tokens, which move more.",
        "clip_of_token_scale",
        ("{low: 0.2, high: 0.28}", "{low: 3e-4, high: 4e-4}"),
    ),
    "kl-estimator-in-reward": entry(
        "`k2` or `k3` is in the reward, where only `k1` has the gradient of the KL.",
        "kl_estimator_in_reward",
        ("estimator: k3", "estimator: k1"),
    ),
    "kl-partial-gradient": entry(
        "A KL in the loss has another gradient than that of the reverse KL of whole responses.",
        "kl_partial_gradient",
        ("estimator: k3", "estimator: k2, unit: sequence"),
    ),
    "kl-rescaled": entry(
        "A KL in the reward is divided by a statistic of the group, and so has another coefficient for each prompt.",
        "kl_rescaled",
        ("placement: reward", "placement: loss, estimator: k2, unit: sequence"),
    ),
    "kl-zero-gradient": entry(
        "`k1` is in the loss, where its expected gradient is zero.",
        "kl_zero_gradient",
        ("placement: loss", "placement: loss, estimator: k2, unit: sequence"),
    ),
    "learns-nothing": entry(
        "With rewards of 0 and 1 every advantage is 0, so nothing is learned.",
        "learns_nothing",
        ("baseline: group_mean", "baseline: none"),
    ),
    "reuse-without-ratio": entry(
        "A batch is used for several updates, and no ratio corrects for the samples being old.",
        "reuse_without_ratio",
        ("sequence_advantage,", "sequence_advantage, ratio: token,"),
    ),
    "token-advantage-constant": entry(
        "Each token has an advantage of its own, and nothing makes them differ.",
        "token_advantage_constant",
        ("token_advantage", "sequence_advantage"),
    ),
    "weight-negative": entry(
        "With rewards of 0 and 1 the estimator follows the opposite of the success rate's gradient at some rates.",
        "weight_negative",
        ("{source: constant, value: -1}", "none"),
    ),
    # scripts that are verified
    "not-a-script": entry(
        "`specc verify` is given a Python file that is no script of specc's, or that does more than define things.",
        "not_a_script",
    ),
    "script-raises": entry(
        "A function of an edited script cannot be evaluated: it looks at what is not there, returns another shape, or "
        "branches on the value of a tensor (`torch.where` chooses without a branch).",
        "script_raises",
    ),
}


# --- what the code says ---


def slugs_in_code() -> Iterator[tuple[str, str]]:
    """Every slug that the code can say and its group, from the calls that say it."""
    slug_at = {"Finding": 0, "Problem": 0, "Says": 0, "refuse_here": 0, "refuse": 1, "note": 1}
    for path in [*PACKAGE.glob("*.py"), *(PACKAGE / "answers").glob("*.py"), *(PACKAGE / "verify").glob("*.py")]:
        groups = {"source": FILE, "paths": FILE, "problems": WORDS, "custom": OWN, "user_code": OWN, "own_answers": OWN}
        group = groups.get(path.stem, CONTRADICTIONS)
        constants = constants_of(path)
        group = SCRIPTS if path.parent.name == "verify" else group
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            at = slug_at.get(name, len(node.args))
            slug = node.args[at] if at < len(node.args) else None
            slug = constants.get(slug.id) if isinstance(slug, ast.Name) else slug
            if isinstance(slug, ast.Constant):
                warns = any(keyword.arg == "warning" for keyword in node.keywords)
                yield str(slug.value), WARNINGS if warns else group
    yield from ((row[2], FILE) for row in SYNTAX)


def constants_of(path: Path) -> dict[str, ast.Constant]:
    """The module's names for constants."""
    nodes = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.Assign)]
    return {
        target.id: node.value
        for node in nodes
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Constant)
    }


# --- the page ---

HEAD = """# Errors and warnings

Everything that specc says about a spec, by the slug in the message: when it occurs, what is seen of an example, and an
edit that mends the example. Where the example has it in several places, the first is shown. `specc errors SLUG` prints
a section in the terminal.

An error ends the run with exit code 1. A warning does not, unless `--strict` is given; `accept: [slug]` in the spec
silences it, in the open.

This page is written by `python tests/errors.py --write` from specs that the tests compile.
"""


def problems_of(case: str) -> list[Problem]:
    """What a bad spec is told, under the name that the page gives it."""
    path = TESTS / "bad_specs" / f"{case}.yaml"
    if (script := TESTS / "bad_scripts" / f"{case}.py").exists():
        return problems_of_script(script)
    try:
        if (folder := TESTS / "bad_answers" / case).exists():
            load_answers(folder)
        if not path.exists():
            find_spec(SHOWN_AS)
        source = read_source(path)
        source.path = SHOWN_AS
        return check(source, path.parent).warnings
    except SpecError as error:
        return [replace(problem, source=renamed(problem.source)) for problem in error.problems]


def problems_of_script(path: Path) -> list[Problem]:
    """What a script that is no estimator is told."""
    from specc.verify.run import verify
    from specc.verify.script import load_script

    try:
        verify(load_script(path.read_text(encoding="utf-8"), "mine.py"), 2, 0)
    except SpecError as error:
        return error.problems
    return []


def renamed(source: Source | None) -> Source | None:
    """A file of functions keeps its name, without the folder."""
    return source and replace(source, path=Path(source.path).name if source.path.endswith(".py") else SHOWN_AS)


def mended(one: Entry) -> str:
    """The text of the bad spec after the edits; each of them has exactly one place."""
    text = (TESTS / "bad_specs" / f"{one.case}.yaml").read_text(encoding="utf-8")
    for old, new in one.edits:
        assert text.count(old) == 1, (one.case, old)
        text = text.replace(old, new)
    return text


def after(one: Entry) -> list[Problem]:
    """What is said of a spec after the edits."""
    try:
        return check(parse(mended(one), SHOWN_AS), TESTS / "bad_specs").warnings
    except SpecError as error:
        return error.problems


def section(slug: str) -> str:
    one = ENTRIES[slug]
    if not one.case:
        return f"### {slug}\n\n{fill(one.when, 120)}\n"
    first = next(problem for problem in problems_of(one.case) if problem.slug == slug)
    parts = [f"### {slug}", fill(one.when, 120), f"```text\n{render([first])}\n```"]
    if one.edits:
        before = (TESTS / "bad_specs" / f"{one.case}.yaml").read_text(encoding="utf-8")
        lines = ndiff(before.splitlines(), mended(one).splitlines())
        changed = [line[0] + line[2:] for line in lines if line[0] in "+-"]
        parts.append("```diff\n" + "\n".join(changed).replace("\t", "\N{RIGHTWARDS ARROW}") + "\n```")
    return "\n\n".join(parts) + "\n"


def page() -> str:
    """The Markdown."""
    groups: dict[str, set[str]] = {group: set() for group in GROUPS}
    for slug, group in slugs_in_code():
        groups[group].add(slug)
    for group in GROUPS:  # one that several say is in the first of their groups
        for other in GROUPS[GROUPS.index(group) + 1 :]:
            groups[other] -= groups[group]
    parts = [HEAD]
    for group, slugs in groups.items():
        parts += [f"## {group}\n", *(section(slug) for slug in sorted(slugs))]
    return "\n".join(parts).replace("\u202e", "\N{REPLACEMENT CHARACTER}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")
