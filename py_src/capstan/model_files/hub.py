"""Names a repository of the Hugging Face hub, or of another hub with the same API, by the repository's id, such as
`OWNER/NAME`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..errors import OptionError
from .file_names import is_gguf, why_not_below

__all__ = ["HUGGING_FACE", "HubRepository"]

HUGGING_FACE = "https://huggingface.co"
"""The default hub."""

PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
ID = re.compile(rf"(?:{PART}/)?{PART}")


@dataclass(frozen=True)
class HubRepository:
    """A repository of a hub, or a GGUF file of one, for `Model.load` and `plan`: `HubRepository("OWNER/NAME")`,
    `HubRepository("OWNER/NAME:FILE.gguf")`.

    `hub` is the hub's address, by default the Hugging Face hub's; None is refused. `revision` is a branch, a tag or a
    commit; all files are read from its commit at the first load. Later loads read the stored files of that commit
    without a request to the hub, until `WeightStore.evict`. `token` is sent only to that hub, not to redirected
    addresses.

    Raises OptionError.
    """

    id: str
    hub: str | None = HUGGING_FACE
    revision: str = "main"
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        name, colon, file = self.id.partition(":") if isinstance(self.id, str) else ("", "", "")
        if not ID.fullmatch(name) or "--" in name or ".." in name:
            raise OptionError(f"repository is {self.id!r}, but must be like 'OWNER/NAME'")
        why = why_not_below(file) if colon else None
        if colon and (why or not is_gguf(file)):
            reason = f" ({why})" if why else ""
            raise OptionError(f"repository is {self.id!r}, but a file of it must be like 'FILE.gguf'{reason}")
        if self.hub is None:
            raise OptionError(f"hub is None, so there is no hub for {self.id}; leave it out, or give an address")
        if not isinstance(self.hub, str) or not re.fullmatch(r"https?://[^/?#\s]+(/[^?#\s]*)?", self.hub):
            raise OptionError(f"hub is {self.hub!r}, but must be an address and begin with https:// or http://")
        if not isinstance(self.revision, str) or not re.fullmatch(r"[^\s?#]+", self.revision):
            raise OptionError(f"revision is {self.revision!r}, but must be a branch, a tag or a commit")
        if self.token is not None and not (isinstance(self.token, str) and re.fullmatch(r"[!-~]+", self.token)):
            raise OptionError("token has characters that are invalid in a token; give it without spaces and line ends")
        object.__setattr__(self, "hub", self.hub.rstrip("/"))

    @property
    def name(self) -> str:
        """The id without the file."""
        return self.id.partition(":")[0]

    @property
    def file(self) -> str | None:
        """The name of the GGUF file in the repository; None for the whole repository."""
        return self.id.partition(":")[2] or None

    def __str__(self) -> str:
        return f"{self.id} at {self.revision} of {self.hub}"
