"""`exec`: run a Python script in the page, where `capstan` is importable."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import threading
from pathlib import Path
from urllib.parse import quote

from ..command_errors import CommandError, raise_remote
from ..model_arguments import add_hub_arguments, add_options, check_script_model, model_url, mounts, repository
from ..terminal import Event, Progress, say

__all__ = ["GROUP", "add_arguments", "check", "run"]

GROUP = "run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `exec`; what follows `--` goes to the script."""
    from capstan.loading.load_options import DeviceOptions

    parser.add_argument("script", metavar="SCRIPT.py", help="the script; its sys.argv holds what follows --")
    model_help = (
        "a folder with a model, a repository or an ONNX graph, or a GGUF file, as models[NAME]; or a hub's repository"
    )
    parser.add_argument("--model", metavar="PLACE", action="append", default=[], help=model_help)
    file_help = "a file or folder that the script may open or import, at this path"
    parser.add_argument("--file", metavar="PATH", action="append", default=[], help=file_help)
    add_hub_arguments(parser)
    add_options(parser, DeviceOptions)


def check(args: argparse.Namespace) -> None:
    """Read the script and check the models; fills `args.source`, `args.mounts`, `args.models`,
    `args.files` (URLs by path in the page) and `args.served` (files by URL)."""
    script = Path(args.script)
    try:
        args.source = script.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise CommandError(f"cannot read the script {script} ({reason}): give the path of a Python file") from error
    named = {name: repository(name, args.hub, args.revision) for name in args.model}
    args.mounts = mounts(check_script_model(Path(name)) for name, hub in named.items() if hub is None)
    args.models = {name: model_url(name) for name in args.mounts}
    args.models |= {name: hub for name, hub in named.items() if hub is not None}
    places = {Path(name).resolve(): Path(name).as_posix() for name, hub in named.items() if hub is None}
    args.files = {}
    for name, model in args.mounts.items():
        place, url = places[model], model_url(name)
        args.files |= {f"{place}/{path}": url + quote(path) for path in files_of(model)}
        if model.is_file():
            args.files[place] = url
    args.served = {}
    for given in [args.script, *args.file]:
        serve(Path(given), args)


def files_of(folder: Path) -> list[str]:
    """The files below a folder, by their paths in it, without hidden ones."""
    found = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    hidden = ("__pycache__", ".")
    return [path.as_posix() for path in found if not any(part.startswith(hidden) for part in path.parts)]


def serve(given: Path, args: argparse.Namespace) -> None:
    """Make a file, or the files below a folder, available at the same path in the page."""
    if not given.exists():
        raise CommandError(f"there is no file or folder {given}: give --file an existing one")
    for path in [given / name for name in files_of(given)] if given.is_dir() else [given]:
        url = f"/files/{len(args.served)}/{path.name}"
        args.served[url] = path
        args.files[path.as_posix()] = quote(url)


def run(args: argparse.Namespace) -> int:
    """Run the script, and return its exit status."""
    return asyncio.run(execute(args))


def deliver(found: asyncio.Future[str], line: str) -> None:
    if not found.done():
        found.set_result(line)


async def read_line() -> str | None:
    """A line of the standard input; None at its end. The thread that waits for it does not delay the end of the
    process.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        line = sys.stdin.readline()
        with contextlib.suppress(RuntimeError):  # the command has ended meanwhile
            loop.call_soon_threadsafe(deliver, found, line)

    threading.Thread(target=read, daemon=True).start()
    return await found or None


async def execute(args: argparse.Namespace) -> int:
    """Open the page, send the script, forward its output."""

    from ..digests import Digests
    from ..headless.headless_page import HeadlessPage
    from ..site_server import serving

    progress = Progress()
    lacked = False

    def show(event: Event) -> None:
        nonlocal lacked
        if event["kind"] in ("stdout", "stderr"):
            lacked = lacked or "(HTTP 404)" in event["text"]
            progress.clear()
            stream = sys.stdout if event["kind"] == "stdout" else sys.stderr
            stream.write(event["text"])
            stream.flush()
        elif event["kind"] == "progress":
            progress.update(event["what"], event["done"], event["total"])
        elif event["kind"] == "status":
            progress.line(event["text"])

    request = {
        "kind": "exec",
        "source": args.source,
        "filename": args.script,
        "argv": [args.script, *args.rest],
        "models": args.models,
        "files": args.files,
    }
    with serving(args.machine.site(), args.mounts, files=args.served, digests=Digests()) as server:
        program = args.machine.browser()
        page = HeadlessPage(server.url, show, read_line, program, args.device, debug=args.debug)
        async with page:
            reply = await page.request(request)
    progress.clear()
    if not reply["ok"]:
        raise_remote(reply["error"])
    status: int = reply["result"]["status"]
    if status and lacked:
        say("a script sees only the models and files that --model and --file name; name the missing one, too")
    return status
