"""The folder of downloaded models: what is in it, and the commands that add to it and delete from it.

Files are deleted by their names in the folder's own list, so that nothing outside it can be named.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import quote, urlsplit

from capstan.errors import CapstanError
from capstan.model_files.gguf.shards import shard_names
from capstan.model_files.hub import HubRepository

from .command_errors import CommandError
from .model_arguments import GGUF
from .places import MODELS
from .terminal import Progress

__all__ = ["delete", "download", "stored"]

CHUNK = 1 << 20
SECONDS = 60.0
"""A hub that sends nothing for so long has failed."""


def stored(folder: Path = MODELS) -> dict[str, Path]:
    """The GGUF files of the folder, by name."""
    found = folder.iterdir() if folder.is_dir() else ()
    return {path.name: path for path in sorted(found) if path.suffix.lower() == GGUF and path.is_file()}


def delete(names: list[str], folder: Path = MODELS) -> list[Path]:
    """Delete files of the folder by their names. For a name that is not in the folder's list raises CommandError, and
    deletes nothing.
    """
    there = stored(folder)
    for name in names:
        if name not in there:
            known = ", ".join(there) or "none"
            raise CommandError(
                f"no downloaded model is named {name!r} (in {folder}: {known}): give a name of this list"
            )
    for name in dict.fromkeys(names):
        there[name].unlink()
    return [there[name] for name in dict.fromkeys(names)]


def download(repository: HubRepository, folder: Path = MODELS) -> list[Path]:
    """Download a hub's GGUF file, with all its shards, into the folder. A file appears when it is complete; an existing
    file with the hub's size is kept. Raises CommandError if the download fails, and for another file of that name.
    """
    assert repository.file is not None
    path, _, last = repository.file.rpartition("/")
    try:
        names = shard_names(last)
    except CapstanError as error:
        raise CommandError(str(error)) from error
    folder.mkdir(parents=True, exist_ok=True)
    base = f"{repository.hub}/{repository.name}/resolve/{quote(repository.revision, safe='')}/"
    return [fetch(base + quote(f"{path}/{name}" if path else name), folder / name, repository.token) for name in names]


class WithoutToken(urllib.request.HTTPRedirectHandler):
    """Sends no token to another host than the hub."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: object,
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """See HTTPRedirectHandler."""
        new = super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]
        if new is not None and urlsplit(newurl).netloc != urlsplit(req.full_url).netloc:
            new.remove_header("Authorization")
        return new


def fetch(address: str, target: Path, token: str | None) -> Path:
    """Download one file."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    part = target.with_name(target.name + ".part")
    progress = Progress()
    try:
        opener = urllib.request.build_opener(WithoutToken)
        with opener.open(urllib.request.Request(address, headers=headers), timeout=SECONDS) as response:
            size = int(response.headers.get("Content-Length") or 0)
            if target.exists():
                if size and target.stat().st_size == size:
                    return target
                raise CommandError(
                    f"{target} is another file, of {target.stat().st_size} bytes, not {size}: delete it first, with "
                    f"models delete {target.name}"
                )
            done = 0
            with part.open("wb") as file:
                while piece := response.read(CHUNK):
                    file.write(piece)
                    done += len(piece)
                    progress.update(target.name, done, size)
        if size and done != size:
            raise CommandError(f"{address} ended after {done} of {size} bytes: run this again")
        part.replace(target)
    except urllib.error.HTTPError as error:
        remedy = "check the id, the file and the revision; a private repository needs a token in CAPSTAN_HUB_TOKEN"
        raise CommandError(f"{address} answers HTTP {error.code}: {remedy}") from error
    except (OSError, http.client.HTTPException) as error:
        raise CommandError(
            f"{address} cannot be downloaded ({error}): check the network and free disk space"
        ) from error
    finally:
        progress.clear()
        part.unlink(missing_ok=True)
    return target
