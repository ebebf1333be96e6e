"""Checks names of files below a model's folder, from configurations and graphs. No name may lead out of the folder."""

from __future__ import annotations

from urllib.parse import quote, unquote

from ..errors import OptionError

__all__ = ["MOST_CHARACTERS", "address_of", "folder_address", "gguf_address", "is_gguf", "split_name", "why_not_below"]

MOST_CHARACTERS = 1024
"""The longest name."""
DOWNLOAD = "download=true"
"""The query that hubs add to the address of a file; it does not change the bytes of the answer."""
DECODINGS = 4
"""The number of times that a name may be percent-encoded; servers decode once, some twice."""


def why_not_below(name: str) -> str | None:
    """The reason why a name is not a file below the folder; None if it is one.

    Names are also read percent-decoded, since a browser, a server or a file system may do so.
    """
    if not name:
        return "it is empty"
    if len(name) > MOST_CHARACTERS:
        return f"it has {len(name)} characters; at most {MOST_CHARACTERS} are allowed"
    for _ in range(DECODINGS):
        found = why_not_plain(name)
        decoded = unquote(name, errors="surrogateescape")
        if found or decoded == name:
            return found
        name = decoded
    return "it is percent-encoded several times"


def why_not_plain(name: str) -> str | None:
    if any(ord(character) < 0x20 or ord(character) == 0x7F for character in name):
        return "it has a control character"
    if any(0xD800 <= ord(character) < 0xE000 for character in name):
        return "it has characters that UTF-8 cannot encode"
    if "\\" in name or ":" in name:
        return 'it has a "\\" or ":"'
    if name != name.strip():
        return "it begins or ends with a space"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return 'it has a part that is empty, "." or ".."'
    return None


def address_of(folder: str, name: str) -> str:
    """The URL of a file in a folder whose URL ends in a slash. Characters with a meaning in URLs are encoded."""
    return folder + quote(name, safe="/!$&'()*+,;=@~")


def split_name(name: str) -> tuple[str, str]:
    """A file's folder below the model's, empty or ending in a slash, and its name in that folder."""
    place, slash, last = name.rpartition("/")
    return place + slash, last


def is_gguf(name: str) -> bool:
    """Whether a file's name, path or address has the ending of GGUF files, which are whole models."""
    return name.lower().endswith(".gguf")


def gguf_address(url: str) -> tuple[str, str] | None:
    """The folder's address and the name of the GGUF file at a URL, without its fragment; None for any other URL. Raises
    OptionError, without showing the query, for a query that may change the server's answer: the address is kept with
    the stored file.
    """
    path, _, query = url.partition("#")[0].partition("?")
    if not is_gguf(path):
        return None
    if query not in ("", DOWNLOAD):
        shown = repr(path.rpartition("@")[2][-100:])
        raise OptionError(f"a model's path is {shown} with a query; give the file's address without it")
    folder, name = split_name(path)
    return folder or "./", unquote(name)


def folder_address(url: str) -> str:
    """A model folder's URL, ending in a slash. Raises OptionError, without showing possible secrets, for a query or
    credentials: the names of files are appended to the URL, which is kept with the stored files.
    """
    shown = repr(url.split("?")[0].split("#")[0].rpartition("@")[2][:100])
    if "?" in url or "#" in url:
        raise OptionError(f"a model's path is {shown} with a query or fragment; give the folder's address without it")
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise OptionError(f"a model's path is an address at {shown} with credentials; give the address without them")
    if any(ord(character) < 0x20 or 0xD800 <= ord(character) < 0xE000 for character in url):
        raise OptionError(
            f"a model's path is {shown}, with characters that are invalid in an address; give another one"
        )
    return url if url.endswith("/") else url + "/"
