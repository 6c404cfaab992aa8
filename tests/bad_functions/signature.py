import torch


def unknown_parameter(returns, scored_BG):
    return returns


def default_by_position(returns_BG, share=0.5):
    return share * returns_BG


def no_annotation(returns_BG, *, share=0.5):
    return share * returns_BG


def default_is_text(returns_BG, *, share: float = "half"):
    return share * returns_BG


def any_number(*tensors, **numbers):
    return torch.stack(tensors).mean() * numbers["share"]


def generator(returns_BG):
    yield returns_BG


mean = torch.mean
