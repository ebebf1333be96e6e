"""`build.py docs`: the documentation as a site."""

from __future__ import annotations

import argparse
import os
import subprocess
from pathlib import Path

from capstan_host.command_errors import CommandError

from .. import BUILD, ROOT
from ..documentation.reference import make_typescript_pages
from ..environment import venv_python
from ..map import PICTURE, drawn

__all__ = ["GROUP", "add_arguments", "build_site", "check", "run"]

GROUP = "docs"
TARGET = BUILD / "docs"
QUIET = {"NO_MKDOCS_2_WARNING": "1"}
"""Material for MkDocs then leaves out what it says of its successor at each build."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `docs`."""
    parser.add_argument("--serve", action="store_true", help="serve the site on localhost, again after each change")
    parser.add_argument("--port", type=int, default=8001, metavar="N", help="of --serve; default: %(default)s")
    parser.add_argument("--pages", action="store_true", help="only write the generated page and picture of docs/ again")


def check(args: argparse.Namespace) -> None:
    """Check the port."""
    if args.port not in range(1, 65536):
        raise CommandError(f"--port is {args.port}, but must be from 1 to 65535")


def run(args: argparse.Namespace) -> int:
    """Build the site, or serve it until Ctrl-C."""
    if args.pages:
        PICTURE.write_text(drawn(), encoding="utf-8")
        # The module imports the command line, which imports this one.
        return subprocess.call([venv_python(), "-m", "buildtools.documentation.options"], cwd=ROOT)
    if args.serve:
        make_typescript_pages()
        command = [*mkdocs("serve"), "--dev-addr", f"localhost:{args.port}"]
        return subprocess.call(command, cwd=ROOT, env={**os.environ, **QUIET})
    print(build_site())
    return 0


def build_site(target: Path = TARGET, demo: bool = False) -> Path:
    """Build the site into a folder; a warning of MkDocs' is an error. `demo` links to the page beside the folder."""
    make_typescript_pages()
    command = [*mkdocs("build"), "--strict", "--clean", "--site-dir", target]
    env = {**os.environ, **QUIET, **({"CAPSTAN_DEMO": "1"} if demo else {})}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode:
        told = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("INFO")]
        raise CommandError("\n".join(["the site has faults, mend these:", *told]), detail=done.stderr)
    return target


def mkdocs(command: str) -> list[str | Path]:
    """MkDocs' command line; -m puts the checkout, which has the hook, on the path."""
    return [venv_python(), "-m", "mkdocs", command, "--config-file", ROOT / "mkdocs.yml"]
