"""Lists a model's options in a table with one row for each option.

A row generates the parameter of Python's functions, the field of a page's requests and the option of the JavaScript API
(buildtools/wire.py), each with its check, and the option of the command line. A class determines which callers accept
its rows; Model.load accepts all. A row is a type, `Annotated` with a Row if there are further facts.
"""

# Annotations are values here, not text: `rows` and `read_request` read them.
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypedDict, TypeVar, cast, get_type_hints

from ..errors import OptionError
from ..host.storage_interface import Progress
from ..model_files.model_facts import ModelFacts

__all__ = [
    "CacheOptions",
    "DeviceOptions",
    "EmbedderOptions",
    "FitOptions",
    "FleetOptions",
    "LoadOptions",
    "PageOptions",
    "RequestOptions",
    "Row",
    "require_options",
    "rows",
    "taken",
]

Table = TypeVar("Table")


@dataclass(frozen=True)
class Row:
    """The facts about an option besides its type."""

    choices: tuple[str, ...] = ()
    """The allowed texts; empty for any."""
    least: int | None = None
    """The smallest number; None for any."""
    most: int | None = None
    default: Any = None
    """The value of an option that is left out; None leaves the default to the code that reads it."""
    help: str = ""
    """The command line's help text; without it the command line does not have the option."""
    metavar: str = "N"
    """The command line's placeholder for a number."""
    host: bool = False
    """Whether Python accepts more texts than a page; the host checks these."""

    def refusal(self, name: str, value: Any) -> str | None:
        """The message about an invalid value, with the name that the caller uses for the option; None if the value is
        valid.
        """
        if self.choices and value not in self.choices:
            described = ", ".join(map(repr, self.choices)) + (", or None" if self.default is None else "")
            return f"{name} is {value!r}; it must be one of {described}"
        if self.least is not None and not self.least <= value <= (value if self.most is None else self.most):
            return f"{name} is {value!r}; it must be " + (
                f"at least {self.least}" if self.most is None else f"from {self.least} to {self.most}"
            )
        return None


class DeviceOptions(TypedDict, total=False):
    """The device of a model."""

    device: Annotated[
        str,
        Row(
            choices=("webgpu", "wasm", "auto"),
            default="auto",
            help="auto: the GPU by WebGPU, or the CPU where there is no GPU; webgpu: WebGPU, on the browser's software "
            "adapter where there is no GPU; wasm: the CPU (default: %(default)s)",
            host=True,
        ),
    ]
    """The default is "auto": WebGPU on a hardware adapter, else the CPU ("wasm")."""


class GraphOptions(TypedDict, total=False):
    """The graph of a model."""

    dtype: str | None
    """The graph of a repository: "q4f16", "q4", "fp16" ...; by default one that suits the device."""


class CacheOptions(GraphOptions, total=False):
    """The options that change what a model computes."""

    kv_cache_dtype: Annotated[
        str | None,
        Row(
            choices=("float", "int8", "int4"),
            help="the type of the key/value caches on WebGPU (default: the model's configuration's, else the graph's)",
        ),
    ]
    """The type of the key/value caches on WebGPU: "int8" and "int4" take a half and a quarter of float16's memory, and
    answers may differ. The default is that of the model's configuration (kvCacheQuantizationBits), else the graph's.
    """


class StoreOptions(TypedDict, total=False):
    """The store of weights."""

    disable_file_mapped_weights: Annotated[
        bool, Row(default=False, help="keep no weights in the browser's storage, and take none from there")
    ]
    """Keep no weights in the browser's storage and read none from it: each load fetches them."""


class FitOptions(DeviceOptions, CacheOptions, total=False):
    """The options that decide whether a model fits a machine."""

    embedding_tables: Annotated[
        str | None,
        Row(
            choices=("memory", "disk"),
            help="where tables are that only lookups of tokens read, such as Gemma 4's (default: in memory, or on disk "
            "if they do not fit there)",
        ),
    ]
    """The place of tables that only lookups of tokens read: "memory", or "disk", from which each run reads the rows of
    its tokens. On disk each token on WebGPU waits until the token before it was read. The default is "memory", and
    "disk" if the memory is too small.
    """


class EmbedderOptions(DeviceOptions, GraphOptions, StoreOptions, total=False):
    """The options of an encoder of texts, and of a speech model."""


class FleetOptions(FitOptions, total=False):
    """The options of a fleet's model."""

    capture: Annotated[
        str | None, Row(choices=("tape", "ort", "off"), help="default: what the model's configuration says, else tape")
    ]
    """How decode steps run on WebGPU. The default is that of the model's configuration (enableGraphCapture), else
    "tape".
    """


class PageOptions(FleetOptions, StoreOptions, total=False):
    """The options of the JavaScript API."""

    prefix_cache: Annotated[int, Row(default=0)]
    """Bytes of device memory for the beginnings of conversations, for later ones that begin in the same way; by default
    none.
    """


class RequestOptions(PageOptions, total=False):
    """The options of a page's requests."""

    stall_timeout: float | None
    """Seconds without a byte after which a request for a file is aborted and tried again; by default unchanged,
    initially 30.
    """


class LoadOptions(RequestOptions, total=False):
    """All options."""

    passes: Collection[str] | None
    """The passes over the recorded step, from `capstan.tape.PASSES`; None takes all that pay on the adapter."""
    progress: Progress | None
    """Called as `progress(what, done, total)` with bytes: first with 'weights', 0 and their total, before any is read,
    then for each file.
    """
    overlay: Mapping[str, Any] | None
    """JSON that is laid over genai_config.json: objects field by field, options of providers added to the existing
    ones, every other value replaced; for a repository only `search` and the decoder's session options.
    """
    graphs: Mapping[str, bytes] | None
    """The graph's file from memory, by its name in the configuration."""
    prefill_ms: float | None
    """The most milliseconds of one run of a prompt on WebGPU: runs that take longer become shorter, and longer again if
    they take much less; 250 by default, `math.inf` for runs as long as memory allows. Software adapters always run 64
    tokens.
    """
    max_length: int | None
    """The number of tokens of the longest sequence, at most the context's length. If its caches do not fit the device,
    the load raises OutOfMemoryError before any weight is read, with the number of tokens that fit, and the cache types
    with which more fit. None requires only the shortest sequence to fit.
    """
    hears: bool | None
    """Whether the model must be a speech model (True) or must not be one; others are refused before any weight is
    read.
    """
    draft_model: Any
    """The place of a smaller model of the same vocabulary, as Model takes it. It drafts tokens on the same device, of
    which the model verifies several in one step: the tokens are those of the model alone. By default none.
    """
    on_found: Callable[[ModelFacts], object] | None
    """Called after the small files are read, before any weight, with facts about the model: its name, parameters, bytes
    and licence.
    """


@cache
def rows(table: Any) -> dict[str, Row]:
    """The rows of a class by their names."""
    kinds = get_type_hints(table, include_extras=True)
    return {name: getattr(kind, "__metadata__", (Row(),))[0] for name, kind in kinds.items()}


def taken(table: type[Table], given: Mapping[str, Any]) -> Table:
    """The options of a class, with the given values and defaults for the others."""
    found = {
        name: row.default if given.get(name) is None else given[name] for name, row in rows(cast(Any, table)).items()
    }
    return cast(Table, found)


def require_options(table: Any, options: Mapping[str, Any], pages: bool = False) -> None:
    """Raise OptionError for a value outside of the choices or limits of an option of the class. Options whose Row has
    `host` are left to the host's check, unless `pages` is true.
    """
    for name, row in rows(table).items():
        value = options.get(name)
        if value is not None and (pages or not row.host) and (described := row.refusal(name, value)):
            raise OptionError(described)
