"""The wheel: what it holds, and that an installed specc compiles the same bytes far from the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import ALGORITHMS, ROOT

SOURCES = [
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
    "specc",
    "templates",
    "algorithms",
    "docs/errors.md",
]


def command(*words: str | Path, folder: Path, **environment: str) -> str:
    """What a command prints; it must succeed. It does not see the repository by PYTHONPATH."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in words], cwd=folder, env=inherited | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left in the repository, with the hatchling that is installed if one is."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (source / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    isolation = ["--no-isolation"] if find_spec("hatchling") else []
    command(sys.executable, "-m", "build", "--wheel", *isolation, "--outdir", target, source, folder=source)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def specc(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of a fresh environment that holds the wheel, and sees the packages installed here but for specc."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, symlinks=True, with_pip=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(home), "platbase": str(home)}))
    # Its own pip: the one that runs here would take the specc that is installed here away.
    install = (home / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    command(*install, "--no-deps", "--no-index", wheel, folder=home)
    # A plain path in a .pth file: the packages there are seen, and their own .pth files, the editable specc's, are not.
    (site / "here.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return home / "bin" / "specc"


def test_the_wheel_is_marked_as_typed_and_holds_templates_and_algorithms(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"specc/py.typed", "specc/_docs/errors.md"} <= names
    for folder in ("templates", "algorithms", "specc"):
        files = [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        inside = {
            f"specc/{'_' if folder != 'specc' else ''}{folder}/{path.relative_to(ROOT / folder)}" for path in files
        }
        inside = {name.removeprefix("specc/") if folder == "specc" else name for name in inside}
        assert inside <= names and len(inside) > 5


def test_the_wheel_holds_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"specc"}
    assert not [name for name in names if "test" in name or "__pycache__" in name or "generated" in name]


def test_an_installed_specc_is_not_the_one_of_the_repository(specc: Path, tmp_path: Path) -> None:
    """Without this, the tests below could pass with the files of the checkout."""
    code = "import specc, specc.paths; print(specc.__file__)"
    where = Path(command(specc.parent / "python", "-c", code, folder=tmp_path).strip())
    assert where.is_relative_to(specc.parent.parent) and not where.is_relative_to(ROOT)


def test_an_installed_specc_compiles_shipped_algorithms_by_name(specc: Path, tmp_path: Path) -> None:
    """From another folder, and byte for byte what is committed."""
    command(specc, "compile", *ALGORITHMS, folder=tmp_path)
    assert sorted(path.stem for path in (tmp_path / "generated").iterdir()) == ALGORITHMS
    for name in ALGORITHMS:
        committed = (ROOT / "generated" / f"{name}.py").read_bytes()
        assert (tmp_path / "generated" / f"{name}.py").read_bytes() == committed


def test_an_installed_specc_says_more_about_an_error(specc: Path, tmp_path: Path) -> None:
    assert command(specc, "errors", "clip-idle", folder=tmp_path).startswith("clip-idle\n\n")


def test_an_installed_specc_compiles_a_spec_of_ones_own(specc: Path, tmp_path: Path) -> None:
    """A copy of a shipped one becomes the committed script, but for the place that it names; a changed one another."""
    own, committed = tmp_path / "grpo.yaml", (ROOT / "generated" / "grpo.py").read_text(encoding="utf-8")
    shutil.copy(ROOT / "algorithms" / "grpo.yaml", own)
    command(specc, "compile", "grpo.yaml", "-o", "mine.py", folder=tmp_path)
    assert "Generated by specc from algorithms/grpo.yaml" in committed
    expected = committed.replace("specc from algorithms/grpo.yaml", "specc from grpo.yaml")
    assert (tmp_path / "mine.py").read_text(encoding="utf-8") == expected
    own.write_text(own.read_text(encoding="utf-8").replace("clip: {low: 0.2", "clip: {low: 0.1"), encoding="utf-8")
    command(specc, "compile", "grpo.yaml", "-o", "mine.py", folder=tmp_path)
    changed = (tmp_path / "mine.py").read_text(encoding="utf-8")
    assert re.search(r'clip_low: Annotated\[float, "> 0", "<= 1"\] = arg\(\s*0\.1,', changed)


def test_an_installed_specc_needs_no_torch_to_compile(specc: Path, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['transformers'] = sys.modules['accelerate'] = None\n"
        "from specc.cli import main\n"
        "main(['compile', 'rloo', '-o', 'rloo.py'])\n"
    )
    command(specc.parent / "python", "-c", code, folder=tmp_path)
    assert (tmp_path / "rloo.py").read_bytes() == (ROOT / "generated" / "rloo.py").read_bytes()


@pytest.mark.parametrize("missing", ["torch", "rich", "hypothesis"])
def test_an_installed_specc_says_what_verification_needs(specc: Path, tmp_path: Path, missing: str) -> None:
    """Whichever package of the extra is not there; `explain` needs none of them."""
    code = (
        "import sys\n"
        f"sys.modules[{missing!r}] = None\n"
        "from click.testing import CliRunner\n"
        "from specc.cli import main\n"
        "explained, verified = (CliRunner().invoke(main, [name, 'rloo']) for name in ('explain', 'verify'))\n"
        "print(explained.exit_code, verified.exit_code, explained.output, verified.output)\n"
    )
    said = command(specc.parent / "python", "-c", code, folder=tmp_path)
    assert said.startswith("0 1 ") and "What it optimizes" in said and "unbiased" in said
    assert f"specc verify needs {missing}; run: pip install 'specc[verify]'" in said


def test_an_installed_specc_verifies(specc: Path, tmp_path: Path) -> None:
    assert "The claim `unbiased` holds." in command(specc, "verify", "rloo", folder=tmp_path)
