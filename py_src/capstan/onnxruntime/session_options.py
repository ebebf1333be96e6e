"""Implements SessionOptions: the options of a session except its providers."""

from __future__ import annotations

from typing import Any

from ..errors import OptionError

__all__ = ["DISABLE_STORE", "SessionOptions", "keeps_weights"]

DISABLE_STORE = "session.disable_file_mapped_weights"
KNOWN = {DISABLE_STORE: ("0", "1")}
"""The supported configuration entries, and their values."""


class SessionOptions:
    """See onnxruntime.SessionOptions; only its configuration entries exist here, and only those in `KNOWN`.

    `session.disable_file_mapped_weights` "1" turns off the browser's storage: external data comes from the network in
    each visit, and is not kept.
    """

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "_entries":
            raise OptionError(f"SessionOptions has no {name} here; it has add_session_config_entry for {known()}")
        super().__setattr__(name, value)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set a configuration entry. Raises OptionError for an unsupported entry or value."""
        if key not in KNOWN:
            raise OptionError(f"there is no session configuration entry {key!r}; Capstan has {known()}")
        if value not in KNOWN[key]:
            allowed = " or ".join(f'"{item}"' for item in KNOWN[key])
            raise OptionError(f"session configuration entry {key!r} is {value!r}; it must be {allowed}")
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """The value that was set. Raises OptionError if it was not set."""
        if key not in self._entries:
            raise OptionError(f"session configuration entry {key!r} was not set; set it with add_session_config_entry")
        return self._entries[key]

    @property
    def keeps_weights(self) -> bool:
        """Whether external data may be kept in the browser's storage."""
        return self._entries.get(DISABLE_STORE) != "1"


def known() -> str:
    return ", ".join(map(repr, KNOWN))


def keeps_weights(options: SessionOptions | None) -> bool:
    """Whether a session's external data may be kept in the browser's storage."""
    return options is None or options.keeps_weights
