"""`serve`: the demo page on localhost."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from ..chat_model import SMOLLM2, default_model
from ..command_errors import CommandError
from ..model_arguments import BUNDLED, check_place, mounts
from ..site_server import SiteServer, transformers_js_files
from ..terminal import say

__all__ = ["GROUP", "add_arguments", "check", "run"]

GROUP = "run"
PORTS = range(65536)
INDEX = "index.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `serve`."""
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="default: %(default)s; 0 takes a free one")
    parser.add_argument(
        "--host", default="127.0.0.1", help="default: %(default)s; browsers give WebGPU to localhost and https only"
    )
    what = "a model to offer, a folder or a GGUF file; the page opens with the first one "
    default = f"(default: {SMOLLM2.title}, which is downloaded once)"
    parser.add_argument("--model", metavar="PLACE", action="append", default=[], help=what + default)
    parser.add_argument(
        "--transformers-js",
        metavar="DIR",
        nargs="?",
        const="",
        help="run Transformers.js of this folder in the page's race, over models in its layout; without DIR npm "
        "installs it, in a checkout",
    )
    parser.add_argument(
        "--site", metavar="DIR", help="serve this folder, as `build.py dist` writes it to build/dist/site"
    )


def check(args: argparse.Namespace) -> None:
    """Check the port, the site, Transformers.js and the models; fills `args.mounts`."""
    if args.site is not None and not (Path(args.site) / INDEX).is_file():
        raise CommandError(f"--site is {args.site}, where there is no {INDEX}: build.py dist makes a site")
    if args.transformers_js:
        transformers_js_files(Path(args.transformers_js))
    if args.port not in PORTS:
        raise CommandError(f"--port is {args.port}, but must be from 0 to {PORTS[-1]}")
    args.mounts = offered(map(Path, args.model))


def offered(models: Iterable[Path]) -> dict[str, Path]:
    """These models and then the bundled one, by the names under which they are served."""
    return mounts(check_place(model) for model in [*models, *([BUNDLED] if BUNDLED.is_dir() else [])])


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""

    from ..digests import Digests

    given, install = args.transformers_js, args.transformers_js == ""
    folder = Path(given) if given else args.machine.transformers_js(install)
    files = {} if folder is None else transformers_js_files(folder)
    models = args.mounts if args.model else offered([default_model()])
    root = Path(args.site) if args.site else args.machine.site()
    if not (root / INDEX).is_file():
        raise CommandError(f"{root} has no {INDEX}: an npm package has no demo page; give a site's folder with --site")
    with SiteServer(root, models, args.host, args.port, files) as server:
        server.digests = Digests()
        print(server.url, flush=True)
        say("serving until Ctrl-C; open the address above in Chrome or Chromium")
        server.serve_forever()
    return 0
