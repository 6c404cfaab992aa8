"""The answers to the five questions, one module a question, in the order of the signal chain."""

from specc.answers import baseline, kl, normalization, objective, reward
from specc.answers.base import Answer, leaves

QUESTIONS: dict[str, type[Answer]] = {
    "reward": reward.Reward,
    "kl": kl.KL,
    "baseline": baseline.Baseline,
    "normalization": normalization.Normalization,
    "objective": objective.Objective,
}
"""The five words and the base class of their answers. Everything that goes over the questions goes over this."""

ASKED = {
    "reward": "Where does the reward come from?",
    "kl": "Where does the KL go?",
    "baseline": "Where does the baseline come from?",
    "normalization": "Over what scope is the advantage normalized?",
    "objective": "What quantity is optimized?",
}


def answers_to(question: str) -> dict[str, type[Answer]]:
    """The answers to a question by the word that a spec writes."""
    return {answer.answer_name(): answer for answer in leaves(QUESTIONS[question])}
