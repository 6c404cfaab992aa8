"""A Python file that is no training script."""

GREETING = "hello"


def greet() -> str:
    return GREETING
