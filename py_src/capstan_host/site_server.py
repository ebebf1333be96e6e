"""The site's server: it adds a list of the models, and digests that their folders lack, to a StaticServer."""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING

from .command_errors import CommandError
from .headless.served_files import FilePart
from .headless.static_server import StaticServer, running
from .model_arguments import DIGESTS_SUFFIX, GGUF, about_model, model_url, transformers_js_dtypes

if TYPE_CHECKING:
    from .digests import Digests

__all__ = ["TRANSFORMERS_JS", "SiteServer", "serving", "transformers_js_files"]

TRANSFORMERS_JS = "/transformers.js/transformers.min.js"
"""The address of Transformers.js for the demo's race, if it is among the files."""
TRANSFORMERS_JS_FILES = (
    "transformers.min.js",
    "ort-wasm-simd-threaded.asyncify.mjs",
    "ort-wasm-simd-threaded.asyncify.wasm",
)


def transformers_js_files(folder: Path) -> dict[str, Path]:
    """The files of Transformers.js that the demo's race loads, by their paths on the site. Raises CommandError if the
    folder lacks one.
    """
    found = {f"/transformers.js/{name}": folder / name for name in TRANSFORMERS_JS_FILES}
    missing = [path.name for path in found.values() if not path.is_file()]
    if missing:
        raise CommandError(
            f"--transformers-js is {folder}, where there is no {missing[0]}: give a folder with "
            f"{', '.join(TRANSFORMERS_JS_FILES)}"
        )
    return found


class SiteServer(StaticServer):
    """A StaticServer with /models/index.json, which lists the models; with `digests` it also serves the digests that
    the models' folders lack. Raises CommandError for an address or a port that is in use.
    """

    digests: Digests | None = None

    def server_bind(self) -> None:
        host, port = self.server_address[:2]
        try:
            super().server_bind()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise CommandError(f"port {port} on {host!s} is taken: give another one with --port N") from error
            reason = error.strerror or error
            raise CommandError(f"cannot listen on {host!s}:{port} ({reason}): give --host and --port") from error

    def about(self, name: str, model: Path) -> dict[str, object]:
        """A model's entry in /models/index.json."""
        entry: dict[str, object] = {"name": name.removesuffix(GGUF), "url": model_url(name), **about_model(model)}
        if TRANSFORMERS_JS in self.files and (dtypes := transformers_js_dtypes(model)):
            entry["transformers_js"] = dtypes
        return entry

    def find(self, path: str) -> BufferedReader | bytes | FilePart | None:
        """See StaticServer."""
        if [part for part in path.split("/") if part] == ["models", "index.json"]:
            return json.dumps([self.about(*model) for model in self.models.items()], indent=1).encode()
        if self.digests and self.is_of_a_model(path) and path.endswith(DIGESTS_SUFFIX):
            data = super().find(path.removesuffix(DIGESTS_SUFFIX))
            if not isinstance(data, BufferedReader):
                return None
            with data:
                return self.digests.text(Path(data.name))
        return super().find(path)


@contextlib.contextmanager
def serving(
    root: Path,
    models: Mapping[str, Path],
    host: str = "127.0.0.1",
    port: int = 0,
    files: Mapping[str, Path] | None = None,
    digests: Digests | None = None,
) -> Iterator[SiteServer]:
    """Serve in a thread of this process for as long as the block runs."""
    server = SiteServer(root, models, host, port, files)
    server.digests = digests
    with running(server):
        yield server
