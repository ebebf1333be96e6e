"""Repositories on a hub, by their ids, as the Hugging Face hub serves them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..errors import OptionError

__all__ = ["HubRepository"]

PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
ID = re.compile(rf"(?:{PART}/)?{PART}")


@dataclass(frozen=True)
class HubRepository:
    """A repository of a hub, for `Model.load` and `plan`: `HubRepository("OWNER/NAME", "https://HUB")`.

    `hub` is the hub's address, which has no default: only what is asked for here leaves the page's origin. `revision`
    is a branch, a tag or a commit; all files are read from the commit that it is when it is first loaded. Later loads
    take what is stored of that commit without asking the hub, until `WeightStore.evict`. `token` is sent to that hub
    alone, not to where it redirects.

    Raises OptionError.
    """

    id: str
    hub: str
    revision: str = "main"
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not ID.fullmatch(self.id) or "--" in self.id or ".." in self.id:
            raise OptionError(f"repository is {self.id!r}, but must be like 'OWNER/NAME'")
        if not isinstance(self.hub, str) or not re.fullmatch(r"https?://[^/?#\s]+(/[^?#\s]*)?", self.hub):
            raise OptionError(f"hub is {self.hub!r}, but must be an address and begin with https:// or http://")
        if not isinstance(self.revision, str) or not re.fullmatch(r"[^\s?#]+", self.revision):
            raise OptionError(f"revision is {self.revision!r}, but must be a branch, a tag or a commit")
        if self.token is not None and not (isinstance(self.token, str) and re.fullmatch(r"[!-~]+", self.token)):
            raise OptionError("token has characters that no token has; give it without spaces and line ends")
        object.__setattr__(self, "hub", self.hub.rstrip("/"))

    def __str__(self) -> str:
        return f"{self.id} at {self.revision} of {self.hub}"
