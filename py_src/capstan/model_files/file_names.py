"""Names of files below a model's folder, as configurations and graphs give them: none may lead out of the folder."""

from __future__ import annotations

from urllib.parse import quote, unquote

from ..errors import OptionError

__all__ = ["MOST_CHARACTERS", "address_of", "folder_address", "gguf_address", "is_gguf", "split_name", "why_not_below"]

MOST_CHARACTERS = 1024
"""The longest name."""
DOWNLOAD = "download=true"
"""The query that hubs put after the address of a file; it changes nothing of the answer's bytes."""
DECODINGS = 4
"""How often a name may be percent-encoded over and over; servers decode once, some twice."""


def why_not_below(name: str) -> str | None:
    """The reason why a name is no file below the folder; None if it is one.

    Names are also read percent-decoded, since a browser, a server or a file system may do so.
    """
    if not name:
        return "it is empty"
    if len(name) > MOST_CHARACTERS:
        return f"it has {len(name)} characters, at most {MOST_CHARACTERS} are taken"
    for _ in range(DECODINGS):
        found = why_not_plain(name)
        decoded = unquote(name, errors="surrogateescape")
        if found or decoded == name:
            return found
        name = decoded
    return "it is percent-encoded several times over"


def why_not_plain(name: str) -> str | None:
    if any(ord(character) < 0x20 or ord(character) == 0x7F for character in name):
        return "it has a control character"
    if any(0xD800 <= ord(character) < 0xE000 for character in name):
        return "it has characters that UTF-8 does not have"
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
    """A file's folder below the model's, empty or ending in a slash, and its name in there."""
    place, slash, last = name.rpartition("/")
    return place + slash, last


def is_gguf(name: str) -> bool:
    """Whether a file's name, path or address ends as a GGUF file's, which is a whole model."""
    return name.lower().endswith(".gguf")


def gguf_address(url: str) -> tuple[str, str] | None:
    """The folder's address and the name of the GGUF file at a URL, whose fragment does not count; None for any other
    URL. Raises OptionError, without showing the query, for one that may change what the server sends: the address is
    kept with what is stored."""
    path, _, query = url.partition("#")[0].partition("?")
    if not is_gguf(path):
        return None
    if query not in ("", DOWNLOAD):
        shown = repr(path.rpartition("@")[2][-100:])
        raise OptionError(f"a model's path is {shown} with a query; give the file's address without")
    folder, name = split_name(path)
    return folder or "./", unquote(name)


def folder_address(url: str) -> str:
    """A model folder's URL, ending in a slash. Raises OptionError, without showing what may be secret, for a query or
    credentials: the names of files are put after the URL, and it is kept with what is stored."""
    shown = repr(url.split("?")[0].split("#")[0].rpartition("@")[2][:100])
    if "?" in url or "#" in url:
        raise OptionError(f"a model's path is {shown} with a query or fragment; give the folder's address without")
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise OptionError(f"a model's path is an address at {shown} with credentials; give the address without")
    if any(ord(character) < 0x20 or 0xD800 <= ord(character) < 0xE000 for character in url):
        raise OptionError(f"a model's path is {shown}, with characters that no address has; give another one")
    return url if url.endswith("/") else url + "/"
