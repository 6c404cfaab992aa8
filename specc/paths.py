"""Where `templates/` and `algorithms/` are: in the checkout when there is one, else in the wheel."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def data_dir(name: str) -> Path:
    """The checkout's folder `name`, or the wheel's copy of it.

    A checkout is known by its pyproject.toml. An editable install is one, too: its files are edited, so they come
    first.
    """
    root = PACKAGE.parent
    shipped = PACKAGE / f"_{name}"
    is_checkout = (root / "pyproject.toml").is_file() and (root / name).is_dir()
    return shipped if shipped.is_dir() and not is_checkout else root / name


def templates_dir() -> Path:
    return data_dir("templates")


def algorithms_dir() -> Path:
    return data_dir("algorithms")


def algorithm_names() -> list[str]:
    """The shipped algorithms."""
    return sorted(path.stem for path in algorithms_dir().glob("*.yaml"))


def find_spec(name_or_path: str | Path) -> Path:
    """The file of a spec: a path, or the bare name of a shipped algorithm.

    Raises `SpecError` when there is neither. A file in the way comes before a shipped name.
    """
    path = Path(name_or_path)
    if path.exists() or path.is_symlink():
        return path
    shipped = algorithms_dir() / f"{name_or_path}.yaml"
    if path.name == str(name_or_path) and shipped.is_file():
        return tidy(shipped)
    raise not_found(str(name_or_path))


def tidy(path: Path) -> Path:
    """The path from the current folder where that is shorter to read."""
    try:
        return path.relative_to(Path.cwd())
    except (ValueError, OSError):
        return path


def not_found(given: str) -> Exception:
    from specc.problems import Problem, SpecError, closest
    from specc.source import Source

    names = algorithm_names()
    near = closest(Path(given).stem, names)
    siblings = sorted(other.name for other in Path(given).parent.glob("*.yaml")) if "/" in given else []
    sibling = closest(Path(given).name, siblings, cutoff=0.8)
    if sibling:
        help = f"did you mean {Path(given).parent / sibling}?"
    elif near:
        help = f"did you mean `{near}`?"
    else:
        help = "give the path of a YAML file" + (f", or one of {', '.join(names)}" if names else "")
    why = "a spec is the path of a YAML file, or the bare name of a shipped algorithm"
    return SpecError([Problem("unreadable-file", "there is no such spec", why, help, source=Source(given))])
