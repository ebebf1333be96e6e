"""Attacks on the local server: bytes on a socket. It must answer or close, say nothing on stderr, never send what lies
outside of its folders, and answer the next request."""

from __future__ import annotations

import contextlib
import io
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from capstan_host.site_server import SiteServer, serving

from .deadline import deadline
from .mutations import mutated_request
from .report import Outcome
from .share import Share

__all__ = ["attack_server"]

SECRET = b"nobody may read this"
BODY = b"a model"
GOOD = b"GET /models/m/model.onnx HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
SECONDS = 5.0


def attack_server(share: Share, corpus: list[bytes]) -> Outcome:
    """So many requests, and those of the corpus."""
    outcome = Outcome("requests")
    made = share.cases(outcome.kind, lambda random: mutated_request(random, GOOD))
    with served() as server:
        for case in [*corpus, *made]:
            with deadline(outcome, case):
                attack_with(server, outcome, case)
    return outcome


def attack_with(server: SiteServer, outcome: Outcome, case: bytes) -> None:
    """Send a request, and then a good one."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        answer = ask(server, case)
        good = ask(server, GOOD)
    if answer is None:
        outcome.fail(case, f"no answer within {SECONDS} s")
    elif SECRET in answer:
        outcome.fail(case, "it sent what is outside of its folders")
    elif errors.getvalue():
        outcome.fail(case, f"it said {errors.getvalue()[-200:]!r}")
    elif good is None or not good.endswith(BODY):
        outcome.fail(case, "the next request was not answered")
    elif answer.startswith((b"HTTP/1.1 2", b"HTTP/1.0 2")):
        outcome.taken += 1
    else:
        outcome.refused += 1


@contextlib.contextmanager
def served() -> Iterator[SiteServer]:
    """A site with a model, and secrets beside both, in a hidden file and behind links."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        for folder in ("site/sub", "models/m"):
            (root / folder).mkdir(parents=True)
        (root / "site/index.html").write_bytes(b"a page")
        (root / "models/m/model.onnx").write_bytes(BODY)
        for secret in ("secret", "site/.secret", "models/secret", "models/m/.secret"):
            (root / secret).write_bytes(SECRET)
        with contextlib.suppress(OSError):
            (root / "models/m/a").symlink_to(root / "secret")
            (root / "site/a").symlink_to(root)
        with serving(root / "site", {"m": root / "models/m"}) as server:
            yield server


def ask(server: SiteServer, request: bytes) -> bytes | None:
    """The server's answer up to the end of the connection, after our last byte; None if it does not close."""
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=SECONDS) as client:
        answer = b""
        try:
            client.sendall(request)
            with contextlib.suppress(OSError):
                # It may have closed already; its answer is there to be read all the same.
                client.shutdown(socket.SHUT_WR)
            while piece := client.recv(65536):
                answer += piece
        except TimeoutError:
            return None
        except ConnectionError:
            pass  # It may close on what it does not want to read.
        return answer
