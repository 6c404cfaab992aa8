def shrunk(returns_BG, *, share: float, power: int = 2):
    return share**power * returns_BG


def plain(ratio, advantages):
    return -ratio * advantages


def likelihood(logprobs, advantages):
    return -logprobs * advantages
