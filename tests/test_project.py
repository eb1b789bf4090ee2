"""The project holds together: packaging, direction of imports, documents that say what the code does."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from functools import lru_cache
from pathlib import Path

import pytest

from cuda_agent_backend.cli import command as cli
from cuda_agent_backend.cli.demo import MODELS
from cuda_agent_backend.options import OURS, PREFIX, Options
from cuda_agent_backend.settings import VARIABLES
from cuda_agent_backend.sources import digest, source_digest

ROOT = Path(__file__).parents[1]
PACKAGES = ("trainer", "cuda_agent_backend", "sandbox", "kernel_cache")
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "examples/train_llm.md",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def sources() -> list[Path]:
    return [path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))]


def table(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table after a heading, without its first two lines."""
    lines = text.partition(f"\n{heading}\n")[2].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
    return rows


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_starts_nothing(package: str) -> None:
    code = f"""
import threading, sys, os
before = dict(os.environ)
import {package}
assert threading.active_count() == 1, threading.enumerate()
assert dict(os.environ) == before
torch = sys.modules.get("torch")
assert torch is None or not torch.cuda.is_initialized()
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_only_the_settings_module_names_our_environment_variables() -> None:
    def names_one(path: Path) -> bool:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        keys = [
            node.slice.value if isinstance(node, ast.Subscript) else node.args[0].value
            for node in ast.walk(tree)
            if (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant))
            or (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute | ast.Name)
                and (getattr(node.func, "attr", "") or getattr(node.func, "id", ""))
                in ("get", "getenv", "pop", "setdefault")
                and node.args
                and isinstance(node.args[0], ast.Constant)
            )
        ]
        return any(isinstance(key, str) and key.startswith("CUDA_AGENT_") for key in keys)

    offenders = [p for p in sources() if p.name != "settings.py" and names_one(p)]
    assert offenders == []


def test_the_settings_table_lists_every_variable_as_the_code_has_it() -> None:
    rows = table(read("docs/settings.md"), "## Environment variables")
    assert [row[0] for row in rows] == [variable.name for variable in VARIABLES]
    for row, variable in zip(rows, VARIABLES, strict=True):
        assert row[2] == variable.meaning
        if variable.default:
            assert row[1] == variable.default


def test_the_options_table_lists_every_option_as_the_code_has_it() -> None:
    rows = table(read("docs/settings.md"), "## Options")
    assert [row[0] for row in rows] == [PREFIX + name for name in OURS]
    for row, (_, allowed, _) in zip(rows, OURS.values(), strict=True):
        assert row[2] == allowed
    for row, name in zip(rows, OURS, strict=True):
        default = Options.__dataclass_fields__[name].default
        if isinstance(default, str | int | float):
            assert row[1] == (str(default) or "none")


def test_every_document_exists_and_its_links_lead_somewhere() -> None:
    for name in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", read(name)):
            assert (ROOT / name).parent.joinpath(target).exists(), f"{name} -> {target}"


def test_every_make_target_in_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    for name in DOCUMENTS:
        for target in re.findall(r"`make ([a-z-]+)", read(name)):
            assert target in targets, f"{name} speaks of `make {target}`"
    assert {"setup", "demo", "test", "check", "fmt", "test-gpu", "bench"} <= targets


def test_every_command_in_the_documents_parses() -> None:
    commands = set()
    for name in DOCUMENTS:
        commands |= set(re.findall(r"^cuda-agent ([^\n#]+?) *(?:#.*)?$", read(name), re.MULTILINE))
    assert len(commands) >= 8
    for command in commands:
        cli.parser().parse_args(command.split())


def test_a_byte_in_any_folder_changes_the_digest_of_the_sources(tmp_path: Path) -> None:
    """Torch keys code that it keeps by this digest: a folder that is left out would serve what older sources made."""
    names = ("cuda_agent_backend", "kernel_cache", "sandbox")
    for name in names:
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )
    copies = [tmp_path / name for name in names]
    before = digest(copies)
    assert before == source_digest()
    folders = [f for c in copies for f in (c, *c.rglob("*")) if f.is_dir()]
    held = [
        sorted(p for p in f.iterdir() if p.suffix in {".py", ".cuh", ".h", ".cpp"}) for f in folders
    ]
    assert sum(map(bool, held)) > 50
    for files in filter(None, held):
        for path in (files[0], files[-1]):
            whole = path.read_bytes()
            path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if whole else b"#")
            assert digest(copies) != before, path
            path.write_bytes(whole)
    assert digest(copies) == before


def test_building_needs_no_torch() -> None:
    required = re.search(r"requires = \[(.*?)\]", read("pyproject.toml"))
    assert required and "torch" not in required.group(1)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that is built from a source distribution, as an index would serve both."""
    folder = tmp_path_factory.mktemp("built")
    setup = [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", str(folder)]
    subprocess.run([*setup, "sdist", "--dist-dir", str(folder)], cwd=ROOT, check=True)
    (sdist,) = folder.glob("*.tar.gz")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(folder), str(sdist)], check=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.mark.slow(250)
@pytest.mark.timeout(1500)
def test_a_wheel_holds_every_file_of_the_packages(wheel: Path) -> None:
    """An installation that is not editable needs the headers that kernel families print, too."""
    held = set(zipfile.ZipFile(wheel).namelist())
    files = {p for name in PACKAGES for p in (ROOT / name).rglob("*.*") if p.is_file()}
    wanted = {str(p.relative_to(ROOT)) for p in files if p.suffix not in {".pyc", ".so"}}
    assert wanted - held == set()
    kinds = {Path(name).suffix for name in held}
    assert {".cuh", ".h", ".cpp", ".md", ".pyi", ".typed", ".so"} <= kinds


def end_of(done: subprocess.CompletedProcess[str]) -> str:
    """How a command ended and the last of what it printed, which says why."""
    return f"exit status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


@pytest.mark.slow(250)
@pytest.mark.timeout(1500)
def test_an_installation_outside_the_checkout_runs(wheel: Path, tmp_path: Path) -> None:
    """Without anything of the checkout `doctor` finds what it needs, and `demo` runs from what the wheel holds."""
    place = tmp_path / "environment"
    venv.create(place, with_pip=False)
    packages = sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)})
    others = [path for path in sys.path if path and not Path(path).is_relative_to(ROOT / "tests")]
    shared = [path for path in others if Path(path).is_dir() and Path(path) != ROOT]
    (Path(packages) / "shared.pth").write_text("\n".join(shared))
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, "--target", packages, str(wheel)], check=True)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        python = [str(place / "bin" / "python"), "-m", "cuda_agent_backend", *words]
        return subprocess.run(
            python, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    where = [str(place / "bin" / "python"), "-c", "import sandbox; print(sandbox.__file__)"]
    said = subprocess.run(where, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert said.stdout.startswith(packages), end_of(said)
    doctor = command("doctor", "--quick")
    assert doctor.returncode == 0, end_of(doctor)
    demo = command("demo", "--budget", "5", "--json", "demo.json")
    written = tmp_path / "demo.json"
    # 1 with a result: times, which a busy machine may spoil; 1 without one: an exception; 2: what went wrong in words
    assert demo.returncode in (0, 1) and written.exists(), end_of(demo)
    found = json.loads(written.read_text(encoding="utf-8"))
    assert [model["name"] for model in found["models"]] == list(MODELS), end_of(demo)
    assert all(model["accurate"] for model in found["models"]), end_of(demo)


def test_the_changelog_knows_the_version() -> None:
    version = re.search(r'version="([^"]+)"', read("setup.py"))
    assert version and f"## {version.group(1)}" in read("CHANGELOG.md")


def test_no_text_holds_a_path_of_somebodys_machine() -> None:
    for path in [*sources(), *(ROOT / name for name in DOCUMENTS)]:
        found = re.search(r"[\"'` (]/(home|root|Users)/\w+", path.read_text(encoding="utf-8"))
        assert not found, f"{path}: {found and found.group()}"


def test_what_tests_take_from_each_other_is_there() -> None:
    """Tests that need a GPU are only collected elsewhere, where a name that is gone goes unnoticed."""
    files = {path.stem: path for path in (ROOT / "tests").rglob("*.py")}
    missing = []
    for path in files.values():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        named: dict[str, set[str]] = {}
        for alias in (
            a for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names
        ):
            if alias.name in files:  # one name may stand for two modules, in two functions
                named.setdefault(alias.asname or alias.name, set()).update(
                    names_in(files[alias.name])
                )
        missing += [
            f"{path.name}:{node.lineno}: {node.value.id}.{node.attr}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.attr not in named.get(node.value.id, {node.attr})
        ]
    assert not missing


@lru_cache
def names_in(path: Path) -> set[str]:
    """What a module's own text gives names to, imports included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {"__file__", "__name__", "__doc__"}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[0])
    return found
