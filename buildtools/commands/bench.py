"""`build.py bench`: measure Capstan beside Transformers.js and onnxruntime-web, or pack that for a GPU host."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from capstan_host.command_errors import CommandError
from capstan_host.model_arguments import BUNDLED, mounts
from capstan_host.terminal import say

from .. import ROOT
from ..environment import run_tool

__all__ = ["GROUP", "about", "add_arguments", "check", "run"]

GROUP = "dev"
SUITES = ("cpu", "gpu")
PAGE = ROOT / "benches/page"
NANO = ROOT / "tests/fixtures/nano-llama"
REAL = ROOT / "build/real"
REAL_MODELS = {"cpu": "smollm2-135m-instruct-f32", "gpu": "smollm2-135m-instruct"}
README = ROOT / "README.md"
SPEED = ROOT / "docs/speed.md"
"""All tables; README.md has one of them, in brief."""
RESULTS = ROOT / "benches/results"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench`."""
    from benches.runner.arguments import add_run_arguments

    suite = "cpu: nano-llama and the bundled model, briefly, on the software adapter (default); gpu: at full length"
    parser.add_argument("--suite", choices=SUITES, default="cpu", help=suite)
    model = "a model folder or a GGUF file, instead of the suite's; may be repeated"
    parser.add_argument("--model", "--gguf", metavar="PATH", action="append", default=[], help=model)
    real = "the real model (SmolLM2-135M-Instruct) before the others; the first use makes it, in about seven minutes"
    parser.add_argument("--real", action="store_true", help=real)
    pack = (
        "write everything that a bare GPU host needs (benches/README.md) into DIR and DIR.tar.xz, and measure nothing"
    )
    parser.add_argument("--pack", metavar="DIR", type=Path, help=pack)
    readme = "write the tables of the newest benches/results/*-speed.json into README.md and docs/speed.md, no more"
    parser.add_argument("--readme", action="store_true", help=readme)
    add_run_arguments(parser)


def check(args: argparse.Namespace) -> None:
    """Check the options and the models; fills `args.models`."""
    from benches.runner.arguments import check_run_arguments, named

    if args.pack and args.suite != "gpu":
        raise CommandError("--pack is for a GPU host: give --suite gpu with it")
    if args.pack:
        args.pack = args.pack.resolve()
        check_pack(args.pack)
    check_run_arguments(args)
    folders = [Path(folder) for folder in args.model] or [NANO, BUNDLED]
    args.models = named(folders)


def check_pack(folder: Path) -> None:
    """Refuse what a pack would overwrite, and where none can be written."""
    from benches.runner.arguments import check_place

    if folder.is_dir() and any(folder.iterdir()):
        raise CommandError(f"{folder} is not empty: name a new folder")
    if archive_of(folder).exists():
        raise CommandError(f"{archive_of(folder)} is there already: remove it or name another folder")
    check_place(folder)


def archive_of(folder: Path) -> Path:
    """The archive beside a pack's folder."""
    return folder.with_name(folder.name + ".tar.xz")


def run(args: argparse.Namespace) -> int:
    """Pack, or measure here; 1 if a step failed, ids differ or another host was asked for anything."""
    if args.readme:
        return write_readme()
    real = mounts([real_model(args.suite)]) if args.real else {}
    if args.pack:
        return pack(args.pack, {**real, **(args.models if args.model else {})}, args.without or ())
    args.models = {**real, **args.models}
    from benches.runner.main import Bench
    from capstan_host.headless.chromium import adapters_to_try, flags

    from ..browser import find_browser
    from ..contenders import install
    from ..site import assemble

    wish = "hardware" if args.suite == "gpu" else "software"
    if args.suite == "gpu" and "hardware" not in adapters_to_try("auto", "webgpu"):
        raise CommandError("no GPU is seen on this machine: use --suite cpu, or --pack DIR for a host that has one")
    bench = Bench(
        site=assemble(),
        page=PAGE,
        packages=install(contenders(args.models, args.without)),
        models=args.models,
        browser=find_browser(),
        flags=flags(wish),
        about=about(contenders(args.models, args.without)),
    )
    return bench.run(args)


def real_model(suite: str) -> Path:
    """The real model's folder for a suite, with its chats; made if it is not there."""
    folder = REAL / REAL_MODELS[suite]
    if not (folder / "genai_config.json").is_file():
        say("making the real model (benches/real/make_smollm2.py) ...")
        run_tool([sys.executable, ROOT / "benches/real/make_smollm2.py", REAL], "check the network and run this again")
    if not (folder / "chats.json").is_file():
        say("asking float32 for its answers (benches/real/agreement.py) ...")
        run_tool([sys.executable, ROOT / "benches/real/agreement.py", folder], "run this again")
    return folder


def contenders(models: dict[str, Path], without: Sequence[str] | None = None) -> list[str]:
    """Those of the other engines that are wanted: Transformers.js where a model is a folder, wllama where it has a file
    for it."""
    from benches.runner.subjects import GGUF

    found = ["transformers_js"] if any(place.is_dir() for place in models.values()) else []
    if any(place.is_file() or (place / GGUF).is_file() for place in models.values()):
        found.append("wllama")
    return [name for name in found if name not in (without or ())]


def about(names: Sequence[str]) -> dict[str, Any]:
    """Versions of everything that is measured, with these contenders, and the names of the tape's passes."""
    from capstan.tape import PASSES

    from ..contenders import versions

    packages = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    own = {name: packages[f"node_modules/{name}"]["version"] for name in ("onnxruntime-web", "pyodide")}
    return {
        "versions": {"capstan": json.loads((ROOT / "package.json").read_text())["version"], **own, **versions(names)},
        "passes": list(PASSES),
    }


def tables_in_step() -> dict[Path, str]:
    """README.md and docs/speed.md as the newest results would have them; empty without results or markers."""
    from benches.runner.readme import BEGIN, newest_results, with_table

    results = newest_results(RESULTS)
    texts = {path: path.read_text(encoding="utf-8") for path in (README, SPEED)}
    if not results or any(BEGIN not in text for text in texts.values()):
        return {}
    shown = {f"../{path.relative_to(ROOT).as_posix()}": path for path in results}
    return {path: with_table(text, shown, brief=path == README) for path, text in texts.items()}


def write_readme() -> int:
    """Bring README.md and docs/speed.md in step with the newest results."""
    try:
        texts = tables_in_step()
    except (OSError, ValueError, KeyError) as error:
        raise CommandError(f"no table can be made of benches/results/*-speed*.json ({error!r}): mend these") from error
    if not texts:
        lacking = "README.md or docs/speed.md lacks <!-- speed -->, or benches/results/ has no *-speed*.json"
        raise CommandError(f"{lacking}: add it first")
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return 0


def pack(folder: Path, given: dict[str, Path], without: Sequence[str] = ()) -> int:
    """Write the site, the page, the runner, the other engines but those left out, the correctness cases with their
    models and the given models into a folder and an archive; both appear once they are complete."""
    from benches.correctness import FIXTURES

    own = {"bundled": BUNDLED, **{name: ROOT / "tests/fixtures" / name for name in FIXTURES}}
    for name in own:
        if given.get(name, own[name]) != own[name]:
            raise CommandError(f"{given[name]} has the name of a model of the pack's own, {name}: rename the folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    archive = archive_of(folder)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".pack-") as scratch:
        made = Path(scratch) / folder.name
        fill(made, own, given, without)
        with tarfile.open(Path(scratch) / archive.name, "w:xz", preset=6) as packed:
            packed.add(made, folder.name)
        if folder.exists():
            folder.rmdir()
        made.rename(folder)
        (Path(scratch) / archive.name).rename(archive)
    say(f"{archive}: {archive.stat().st_size / 1e6:.1f} MB")
    return 0


def fill(folder: Path, own: dict[str, Path], given: dict[str, Path], without: Sequence[str]) -> None:
    """Write all parts of a pack but the contenders `without` into a new folder; `own` are the models with correctness
    cases."""
    from benches.correctness import cases
    from capstan_host.headless.chromium import HARDWARE_LINUX

    from ..contenders import CONTENDERS, install
    from ..site import assemble

    folder.mkdir()
    shutil.copytree(assemble(), folder / "site")
    names = [name for name in CONTENDERS if name not in without]
    for name, source in install(names).items():
        shutil.copytree(source, folder / name)
    quiet = shutil.ignore_patterns("__pycache__")
    for name in ("page", "runner"):
        shutil.copytree(ROOT / "benches" / name, folder / "benches" / name, ignore=quiet)
    shutil.copy(ROOT / "benches/README.md", folder)
    for name in ("make_hybrid", "make_shape", "repeated_layers", "successors"):
        shutil.copy(ROOT / f"benches/shapes/{name}.py", folder)
    for name in ("capstan", "capstan_host"):
        shutil.copytree(ROOT / "py_src" / name, folder / "py_src" / name, ignore=quiet)
    host_flags = {"flags": ["--no-sandbox", "--enable-unsafe-webgpu", *HARDWARE_LINUX]}
    (folder / "about.json").write_text(json.dumps({**about(names), **host_flags}, indent=1))
    for name, source in {**own, **given}.items():
        if source.is_dir():
            shutil.copytree(source, folder / "models" / name)
        else:
            shutil.copy(source, folder / "models" / name)
    (folder / "cases.json").write_text(json.dumps(cases(own)))
