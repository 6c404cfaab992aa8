"""The wheel: what it holds, and that an installed specc compiles the same bytes far from the repository."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
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


ISOLATION = ["--no-isolation"] if find_spec("hatchling") else []
"""with the hatchling that is installed, if one is"""


def copied(folder: Path) -> Path:
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left in the repository."""
    source, target = copied(tmp_path_factory.mktemp("source")), tmp_path_factory.mktemp("wheel")
    command(sys.executable, "-m", "build", "--wheel", *ISOLATION, "--outdir", target, source, folder=source)
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


# --- the sdist ---


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is packed, so that nothing is left in the repository."""
    return copied(tmp_path_factory.mktemp("source"))


def test_the_sdist_makes_the_same_wheel(source: Path, wheel: Path, tmp_path: Path) -> None:
    """By way of the archive that a package index serves: its wheel has the files of ours, byte for byte."""
    command(sys.executable, "-m", "build", "--sdist", *ISOLATION, "--outdir", tmp_path, source, folder=source)
    (archive,) = tmp_path.glob("*.tar.gz")
    unpacked = tmp_path / "unpacked"
    with tarfile.open(archive) as files:
        files.extractall(unpacked, filter="data")
    (root,) = unpacked.iterdir()
    command(sys.executable, "-m", "build", "--wheel", *ISOLATION, "--outdir", tmp_path, root, folder=root)
    (rebuilt,) = tmp_path.glob("*.whl")
    assert contents(rebuilt) == contents(wheel)


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as files:
        return {name: files.read(name) for name in files.namelist()}


# --- a folder that cannot be written ---

CAPABILITY_DROP, DAC_OVERRIDE = 24, 1


def obey_permissions() -> None:
    """Has root, too, refused what the permissions of a file refuse."""
    if os.geteuid() == 0 and ctypes.CDLL(None).prctl(CAPABILITY_DROP, DAC_OVERRIDE, 0, 0, 0) != 0:
        os._exit(99)


@pytest.fixture
def sealed(specc: Path, tmp_path: Path) -> Iterator[Path]:
    """A folder without permission to write, and the same for all that is installed there."""
    folder = tmp_path / "sealed"
    folder.mkdir()
    shutil.copy(ROOT / "algorithms" / "grpo.yaml", folder / "mine.yaml")
    (installed,) = specc.parent.parent.glob("lib/python*/site-packages/specc")
    folders = [folder, *(path for path in (installed, *installed.rglob("*")) if path.is_dir())]
    for cache in installed.rglob("__pycache__"):
        shutil.rmtree(cache)
    folders = [path for path in folders if path.is_dir()]
    for path in folders:
        path.chmod(0o555)
    yield folder
    for path in folders:
        path.chmod(0o755)


def run_sealed(*words: str | Path, folder: Path, **environment: str | None) -> subprocess.CompletedProcess[str]:
    unset = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", *(name for name, value in environment.items() if value is None)}
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    changed = {name: value for name, value in environment.items() if value is not None}
    return subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=kept | changed,
        preexec_fn=obey_permissions,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("home", [None, "/nonexistent"])
def test_an_installed_specc_works_where_nothing_can_be_written(
    specc: Path, sealed: Path, tmp_path: Path, home: str | None
) -> None:
    """Not the current folder, not its own, and no home: to stdout, and to a folder elsewhere."""
    touched = run_sealed("touch", sealed / "file", folder=sealed)
    if touched.returncode == 0:
        pytest.skip("this user may write everywhere, and cannot be kept from it")
    committed = (ROOT / "generated" / "grpo.py").read_text(encoding="utf-8")
    expected = committed.replace("specc from algorithms/grpo.yaml", "specc from mine.yaml")
    nowhere = {"HOME": home, "TMPDIR": "/nonexistent"}
    printed = run_sealed(specc, "compile", "mine.yaml", "-o", "-", folder=sealed, **nowhere)
    assert (printed.returncode, printed.stderr) == (0, "") and printed.stdout == expected
    out = tmp_path / "out"
    written = run_sealed(specc, "compile", "mine.yaml", "rloo", "-o", f"{out}/", folder=sealed, HOME=home)
    assert (written.returncode, written.stderr) == (0, "")
    assert (out / "grpo.py").read_text(encoding="utf-8") == expected
    explained = run_sealed(specc, "explain", "mine.yaml", folder=sealed, **nowhere)
    assert explained.returncode == 0 and explained.stdout.startswith("grpo: GRPO")
    assert sorted(path.name for path in sealed.iterdir()) == ["mine.yaml"]
    refused = run_sealed(specc, "compile", "mine.yaml", folder=sealed, HOME=home)
    assert refused.returncode == 1 and "generated/grpo.py cannot be written: Permission denied" in refused.stderr


def test_modules_of_the_current_folder_change_nothing(specc: Path, tmp_path: Path) -> None:
    """Nor its configuration of ruff: folders that are called like packages, and rules of its own."""
    for name in ("torch", "transformers", "accelerate", "src/yaml"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "copy.py").touch()
    (tmp_path / "pyproject.toml").write_text("[tool.ruff]\nline-length = 60\n", encoding="utf-8")
    command(specc, "compile", "rloo", "grpo", "-o", "out/", folder=tmp_path)
    command(specc, "compile", "rloo", "-o", "one.py", folder=tmp_path)
    for path, name in (("out/rloo.py", "rloo"), ("out/grpo.py", "grpo"), ("one.py", "rloo")):
        assert (tmp_path / path).read_bytes() == (ROOT / "generated" / f"{name}.py").read_bytes()


def test_python_dash_m(specc: Path, tmp_path: Path) -> None:
    said = command(specc.parent / "python", "-m", "specc", "compile", "rloo", "-o", "-", folder=tmp_path)
    assert said == (ROOT / "generated" / "rloo.py").read_text(encoding="utf-8")
    version = command(specc.parent / "python", "-m", "specc", "--version", folder=tmp_path)
    assert version == command(specc, "--version", folder=tmp_path)


# --- its types ---

CLIENT = """\
from pathlib import Path

import specc

loaded = specc.load_spec("rloo")
name: str = loaded.spec.name
slugs: list[str] = [warning.slug for warning in loaded.warnings]
compiled = specc.compile_spec(Path("mine.yaml"))
script: str = compiled.script
verified = specc.verify("rloo", group_size=4, seed=1)
verdict: str = verified.verdict
holds: bool = verified.holds
found: dict[str, object] = verified.to_json()
answers: list[str] = [answer.answer_name() for answer in specc.load_answers("answers")]
try:
    specc.load_spec("nothing")
except specc.SpecError as error:
    lines: list[int] = [problem.place.line for problem in error.problems if problem.place]
"""


def test_a_client_is_type_checked_against_the_installed_specc(specc: Path, tmp_path: Path) -> None:
    client = tmp_path / "client.py"
    client.write_text(CLIENT, encoding="utf-8")
    check = (sys.executable, "-m", "mypy", "--strict", "--python-executable", specc.parent / "python")
    command(*check, "--cache-dir", tmp_path / "cache", client, folder=tmp_path)
    client.write_text(CLIENT.replace("holds: bool", "holds: int | None").replace("verdict: str", "verdict: int"))
    done = subprocess.run(
        [str(word) for word in (*check, "--cache-dir", tmp_path / "cache", client)],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and 'has type "str", variable has type "int"' in done.stdout
