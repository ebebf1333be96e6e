"""`build.py exec`: run a Python script in the page, where `capstan` is importable."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from ..errors import CommandError, raise_remote
from ..models import add_hub_arguments, check_onnx_folder, model_url, mounts, repository
from ..terminal import Progress

__all__ = ["GROUP", "add_arguments", "check", "run"]

GROUP = "run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `exec`; what follows `--` goes to the script."""
    parser.add_argument("script", metavar="SCRIPT.py", help="the script; its sys.argv holds what follows --")
    model_help = "a folder with a model, a repository or an ONNX graph, as models[NAME]; or a hub's repository"
    parser.add_argument("--model", metavar="DIR", action="append", default=[], help=model_help)
    add_hub_arguments(parser)


def check(args: argparse.Namespace) -> None:
    """Read the script and check the models; fills `args.source`, `args.mounts` and `args.models`."""
    script = Path(args.script)
    try:
        args.source = script.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise CommandError(f"cannot read the script {script} ({reason}): give the path of a Python file") from error
    named = {name: repository(name, args.hub, args.revision) for name in args.model}
    args.mounts = mounts(check_onnx_folder(Path(name)) for name, hub in named.items() if hub is None)
    args.models = {name: model_url(name) for name in args.mounts}
    args.models |= {name: hub for name, hub in named.items() if hub is not None}


def run(args: argparse.Namespace) -> int:
    """Run the script; its exit status is the command's."""
    return asyncio.run(execute(args))


async def execute(args: argparse.Namespace) -> int:
    """Open the page, send the script, pass its output on."""
    from ..page import Event, open_harness
    from ..server import serving
    from ..site import assemble

    progress = Progress()

    def show(event: Event) -> None:
        if event["kind"] in ("stdout", "stderr"):
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
    }
    with serving(assemble(), args.mounts) as server:
        async with open_harness(server.url, show, args.debug) as harness:
            reply = await harness.request(request)
    progress.clear()
    if not reply["ok"]:
        raise_remote(reply["error"])
    status: int = reply["result"]["status"]
    return status
