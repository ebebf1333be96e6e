"""Set-up with the standard library only: .venv, node_modules, the generated ONNX module and the wire's generated files.

Each stage leaves a stamp, written last and keyed by the files that define the stage, so that an interrupted stage is
done again and a finished one costs nothing. Packages for Python, those for JavaScript, and what the page has besides
come side by side.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from capstan_host.command_errors import CommandError
from capstan_host.locks import locked
from capstan_host.terminal import say

from . import CACHE, ROOT, VENV
from .carried_wheels import CARRIED_FOLDER, fetch_carried
from .wire import wire_is_stale, write_wire

__all__ = [
    "MICROPIP_WHEELS",
    "PROTOBUF_WHEELS",
    "distribution",
    "ensure",
    "in_venv",
    "run_tool",
    "site_packages",
    "venv_python",
]

NODE_MINIMUM = 18
PROTOBUF_WHEELS = CACHE / "protobuf"
MICROPIP_WHEELS = CACHE / "micropip"


def venv_python(venv: Path = VENV) -> Path:
    """The interpreter inside the virtual environment, whether or not it exists."""
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def site_packages() -> Path:
    """The folder of .venv's packages."""
    (found,) = [*VENV.glob("lib/python*/site-packages"), *VENV.glob("Lib/site-packages")]
    return found


def distribution(name: str) -> Path:
    """The dist-info folder of an installed Python package."""
    (found,) = site_packages().glob(f"{name}-*.dist-info")
    return found


def in_venv() -> bool:
    """Whether this process runs in the checkout's virtual environment."""
    return Path(sys.prefix).resolve() == VENV.resolve()


def ensure(group: str = "run") -> None:
    """Make everything that `requirements/<group>.txt` and the page need; does nothing when it is there."""
    venv = Stage("virtual environment .venv", VENV / ".capstan-venv", _pinned("pip"), _make_venv, text=str(ROOT))
    npm = Stage("packages for JavaScript", ROOT / "node_modules/.capstan", _npm_files(), _npm_install)
    packages = [
        Stage(f"packages for Python: {name}", VENV / f".capstan-{name}", _pinned(name), partial(_pip_install, name))
        for name in dict.fromkeys(("run", group))
    ]
    downloads = [
        Stage("protobuf for the page", PROTOBUF_WHEELS / ".capstan", [_requirements("run")], _download_protobuf),
        Stage(
            "numpy, Pillow and a detector of speech for the page, inside 117 MB",
            CARRIED_FOLDER / ".capstan",
            [Path(__file__).with_name("carried_wheels.py")],
            lambda: fetch_carried(venv_python()),
        ),
    ]
    if group == "dev":
        downloads.append(
            Stage("micropip for tests", MICROPIP_WHEELS / ".capstan", [_requirements("pyodide")], _download_micropip)
        )
    stages = (venv, npm, *packages, *downloads)
    if all(stage.is_done() for stage in stages) and not _onnx_module_is_stale() and not wire_is_stale():
        return
    with locked("set-up"):
        with ThreadPoolExecutor() as side_by_side:
            begun = [side_by_side.submit(run_in_turn, [npm])]
            venv.run_once()
            begun += [side_by_side.submit(run_in_turn, chain) for chain in (packages, downloads)]
        for each in begun:
            each.result()
        if _onnx_module_is_stale():
            _copy_onnx_module()
        write_wire()


def run_in_turn(stages: Sequence[Stage]) -> None:
    """Run the stages that are not done, one after the other."""
    for stage in stages:
        stage.run_once()


class Stage:
    """One stage of the set-up: done when its stamp holds the digest of what defines it."""

    def __init__(
        self, title: str, stamp: Path, inputs: Sequence[Path], work: Callable[[], None], text: str = ""
    ) -> None:
        self.title = title
        self.stamp = stamp
        self.inputs = inputs
        self.work = work
        self.text = text

    def digest(self) -> str:
        digest = hashlib.sha256(self.text.encode())
        for path in self.inputs:
            digest.update(path.read_bytes())
        return digest.hexdigest()

    def is_done(self) -> bool:
        try:
            return self.stamp.read_text() == self.digest()
        except FileNotFoundError:
            return False

    def run_once(self) -> None:
        """Do the work unless the stamp says that it is done; the stamp is written last."""
        if self.is_done():
            return
        self.stamp.unlink(missing_ok=True)
        say(f"set-up: {self.title} ...")
        started = time.monotonic()
        self.work()
        self.stamp.parent.mkdir(parents=True, exist_ok=True)
        self.stamp.write_text(self.digest())
        say(f"set-up: {self.title}: done in {time.monotonic() - started:.0f} s")


def run_tool(command: Sequence[str | Path], remedy: str, env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> str:
    """Run a tool quietly and return its stdout; a failure becomes one line with the tool's last words."""
    name = Path(command[0]).name
    # On Windows npm is npm.cmd, which only its whole path starts.
    program = shutil.which(command[0], path=(env or os.environ).get("PATH")) or command[0]
    try:
        done = subprocess.run(
            [str(part) for part in (program, *command[1:])], cwd=cwd, env=env, capture_output=True, text=True
        )
    except FileNotFoundError as error:
        raise CommandError(f"{name} was not found: {remedy}") from error
    if done.returncode:
        output = (done.stderr + done.stdout).strip()
        raise CommandError(f"{_tool_words(command)} failed with {_last_words(output)!r}: {remedy}", detail=output)
    return done.stdout


def _tool_words(command: Sequence[str | Path]) -> str:
    return " ".join([Path(command[0]).name, *(str(part) for part in command[1:4])])


def _last_words(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"(npm |✘ \[)?err(or)?\b", line, re.IGNORECASE)]
    return " ".join(telling[:2] or lines[-1:] or ["no output"])[:300]


def _requirements(group: str) -> Path:
    return ROOT / f"requirements/{group}.txt"


def _pinned(group: str) -> list[Path]:
    """The group's file of pins, and those that it includes."""
    file = _requirements(group)
    included = re.findall(r"^-r (\w+)\.txt$", file.read_text(), re.MULTILINE)
    return [file, *(each for name in included for each in _pinned(name))]


def _npm_files() -> list[Path]:
    return [ROOT / "package.json", ROOT / "package-lock.json"]


def _make_venv() -> None:
    remedy = "install Python's venv module (Debian and Ubuntu: apt-get install python3-venv) and run this again"
    if any(importlib.util.find_spec(module) is None for module in ("ensurepip", "venv")):
        raise CommandError(f"{sys.executable} cannot make virtual environments: {remedy}")
    if VENV.is_symlink():
        raise CommandError(f"{VENV} is a link to {VENV.resolve()}, whose packages would be cleared: remove the link")
    run_tool([_base_python(), "-m", "venv", "--clear", VENV], remedy)
    # Python 3.11 brings a pip that takes twice the processor time.
    _pip_install("pip")


def _base_python() -> str:
    return getattr(sys, "_base_executable", None) or sys.executable


def _pip(command: str) -> list[str | Path]:
    return [venv_python(), "-m", "pip", command, "--quiet", "--no-input", "--disable-pip-version-check"]


def _pip_install(group: str) -> None:
    """Files that are not those of the hashes are refused. Python compiles what it imports, which is little of it."""
    run_tool(
        [*_pip("install"), "--no-compile", "--require-hashes", "-r", _requirements(group)],
        "check the network and free disk space, then run this again",
    )


def _npm_install() -> None:
    remedy = f"install Node {NODE_MINIMUM} or newer with npm (Debian: apt-get install nodejs npm) and run this again"
    version = run_tool(["node", "--version"], remedy).strip()
    if int(version.lstrip("v").split(".")[0]) < NODE_MINIMUM:
        raise CommandError(f"Node {version} found: {remedy}")
    npm = shutil.which("npm")
    if npm is None:
        raise CommandError(f"npm was not found: {remedy}")
    flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    run_tool([npm, "ci", *flags], "check the network and free disk space, then run this again")


def _download_protobuf() -> None:
    """Fetch protobuf's pure-Python wheel, in the version that .venv has: the page loads it."""
    pin = re.search(r"^protobuf==.*(?:\n    .*)*", _requirements("run").read_text(), re.MULTILINE)
    assert pin is not None
    _download(pin[0] + "\n", PROTOBUF_WHEELS)


def _download_micropip() -> None:
    """Fetch what installs wheels in a Pyodide that is not ours."""
    _download(_requirements("pyodide").read_text(), MICROPIP_WHEELS)


def _download(requirements: str, folder: Path) -> None:
    """Fetch pure-Python wheels, pinned by hashes, into the emptied folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    listed = folder / "requirements.txt"
    listed.write_text(requirements)
    pure = ["--only-binary=:all:", "--platform=any", "--implementation=py", "--abi=none", "--python-version=3.14"]
    run_tool(
        [*_pip("download"), "--no-deps", "--require-hashes", *pure, "-d", folder, "-r", listed],
        "check the network, then run this again",
    )


def _onnx_sources() -> dict[Path, Path]:
    """Generated module in our package -> its source file in the installed onnx wheel."""
    found = list(VENV.glob("lib/python*/site-packages/onnx")) + list(VENV.glob("Lib/site-packages/onnx"))
    if not found:
        return {}
    target = ROOT / "py_src/capstan/graph"
    return {target / f"onnx_pb2.{suffix}": found[0] / f"onnx_ml_pb2.{suffix}" for suffix in ("py", "pyi")}


def _onnx_module_is_stale() -> bool:
    sources = _onnx_sources()
    return not sources or any(
        not made.is_file() or made.stat().st_mtime < source.stat().st_mtime for made, source in sources.items()
    )


def _copy_onnx_module() -> None:
    """Take the module that protoc made from ONNX's schema out of the onnx wheel.

    A module of our own making would register the same messages under another file name, and protobuf refuses that in a
    process that also imports onnx.
    """
    for made, source in _onnx_sources().items():
        made.parent.mkdir(parents=True, exist_ok=True)
        temporary = made.with_suffix(made.suffix + ".new")
        shutil.copyfile(source, temporary)
        temporary.replace(made)
