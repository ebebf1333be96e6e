"""A web server that knows nothing of Capstan: Python's own, without isolation headers and byte ranges."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

__all__ = ["serving_plainly"]


class PlainHandler(SimpleHTTPRequestHandler):
    """Python's own file server, silent."""

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""


class OpenHandler(PlainHandler):
    """The same for pages of any origin."""

    def end_headers(self) -> None:
        self.send_header("Access-Control-Allow-Origin", "*")
        super().end_headers()


@contextmanager
def serving_plainly(folder: Path, *, any_origin: bool = False) -> Iterator[str]:
    """Serve a folder; the server's address. With `any_origin` pages of other origins may read it (CORS)."""
    handler = partial(OpenHandler if any_origin else PlainHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
