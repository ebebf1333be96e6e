"""The requests that a page may send (web/src/protocol.ts), with their fields and the fields' types."""

from __future__ import annotations

from typing import Any

from ..errors import OptionError
from ..model_files.json_text import NotJsonError, clipped, read_json

__all__ = ["read_request"]

MODEL = ("model", "dtype", "device", "capture", "run_ahead")
FIELDS = {
    "load": (*MODEL, "max_length", "max_new_tokens", "search"),
    "generate": (*MODEL, "prompt", "prompt_ids", "max_new_tokens", "search"),
    "chat": (*MODEL, "messages", "max_length", "max_new_tokens", "search"),
    "exec": ("source", "filename", "argv", "models", "files"),
    "models": ("action", "which"),
    "memory": (),
    "operations": MODEL,
    "plan": ("model", "dtype", "device"),
    "alternatives": (*MODEL, "prompt", "answer", "count", "max_length", "max_new_tokens", "search"),
    "end_session": ("session",),
    "trace": ("action",),
}
"""By the kind of a request; others may be there, too."""

TEXT, NUMBER, LIST, OBJECT = "a string", "a whole number", "an array", "an object"
SECONDS, FLAG = "a number", "true or false"
TYPES: dict[str, tuple[type, ...]] = {
    TEXT: (str,),
    NUMBER: (int,),
    LIST: (list,),
    OBJECT: (dict,),
    SECONDS: (int, float),
    FLAG: (bool,),
}
KINDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("device", "source", "filename", "action"), (TEXT,)),
    **dict.fromkeys(("dtype", "capture", "prompt", "which", "logits_processor"), (TEXT, "null")),
    **dict.fromkeys(("run_ahead", "max_new_tokens", "max_length", "recoveries", "prefix_cache"), (NUMBER, "null")),
    **dict.fromkeys(("messages", "argv", "answer"), (LIST,)),
    "begun": (LIST, "null"),
    "count": (NUMBER,),
    **dict.fromkeys(("timeline", "disable_file_mapped_weights"), (FLAG, "null")),
    **dict.fromkeys(("search", "models", "files"), (OBJECT,)),
    "model": (TEXT, OBJECT),
    "prompt_ids": (LIST, "null"),
    "session": (TEXT, "null"),
    "stall_timeout": (SECONDS, "null"),
}
TEXTS = ("argv", "files")
"""Fields that hold collections of strings."""


def read_request(text: str) -> dict[str, Any]:
    """A request with all its fields. Raises OptionError with what is missing or of another type."""
    try:
        request = read_json(text)
    except NotJsonError as error:
        raise OptionError(f"request: {error}") from error
    if not isinstance(request, dict):
        raise OptionError(f"request: {clipped(request)}, expected an object")
    kind = request.get("kind")
    if not isinstance(kind, str) or kind not in FIELDS:
        raise OptionError(f"a request's kind is {clipped(kind)}; it must be one of {', '.join(FIELDS)} or cancel")
    missing = [field for field in FIELDS[kind] if field not in request]
    if missing:
        raise OptionError(f"{', '.join(missing)}: missing in the request {kind!r}; null is for what is left open")
    for name, value in request.items():
        require_type(name, value)
    return request


def require_type(name: str, value: object) -> None:
    """Raise OptionError for a field of another type than protocol.ts says."""
    wanted = KINDS.get(name)
    if wanted is None or (value is None and "null" in wanted):
        return
    types = tuple(kind for what in wanted if what != "null" for kind in TYPES[what])
    if isinstance(value, bool) is not (bool in types) or not isinstance(value, types):
        raise OptionError(f"{name} is {clipped(value)}; it must be {' or '.join(wanted)}")
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if name in TEXTS and not all(isinstance(item, str) for item in items):
        raise OptionError(f"{name} is {clipped(value)}; there must be strings in it")
