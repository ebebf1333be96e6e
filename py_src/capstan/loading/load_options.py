"""The table of a model's options: each is one row here, and is read where it does something.

From a row come the parameter of Python's functions with its check, the field of a page's requests with its check, the
option of the JavaScript API with its check (buildtools/wire.py), and the option of the command line. A class says who
takes its rows; Model.load takes all. A row is a type, and `Annotated` with a Row where there is more to say than that.
"""

# Annotations are values here, not text: `rows` and `read_request` look at them.
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
    """The texts that it may be; empty for any."""
    least: int | None = None
    """The least number that it may be; None for any."""
    most: int | None = None
    default: Any = None
    """The value of an option that is left out; None leaves it to the code that reads it."""
    help: str = ""
    """The command line's words for it; without them it is no option of the table there."""
    metavar: str = "N"
    """The command line's word for a number."""
    host: bool = False
    """Whether Python takes more texts than a page, which the host checks."""

    def refusal(self, name: str, value: Any) -> str | None:
        """The message about a value that the option cannot have, by the name that it has there; None for others."""
        if self.choices and value not in self.choices:
            told = ", ".join(map(repr, self.choices)) + (", or None" if self.default is None else "")
            return f"{name} is {value!r}; it must be one of {told}"
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
    """By default "auto": WebGPU on a hardware adapter, else the CPU ("wasm")."""


class GraphOptions(TypedDict, total=False):
    """The graph of a model."""

    dtype: str | None
    """Which graph of a repository: "q4f16", "q4", "fp16" ...; by default one that suits the device."""


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
    answers may differ; by default as the model's configuration says (kvCacheQuantizationBits), else the graph's."""


class StoreOptions(TypedDict, total=False):
    """The store of weights."""

    disable_file_mapped_weights: Annotated[
        bool, Row(default=False, help="keep no weights in the browser's storage, and take none from there")
    ]
    """Keep no weights in the browser's storage, and take none from there: each load fetches them."""


class FitOptions(DeviceOptions, CacheOptions, total=False):
    """The options that decide whether a model fits a machine."""


class EmbedderOptions(DeviceOptions, GraphOptions, StoreOptions, total=False):
    """The options of an encoder of texts, and of a speech model."""


class FleetOptions(FitOptions, total=False):
    """The options of a fleet's model."""

    capture: Annotated[
        str | None, Row(choices=("tape", "ort", "off"), help="default: what the model's configuration says, else tape")
    ]
    """How decode steps run on WebGPU; by default as the model's configuration says (enableGraphCapture), else
    "tape"."""


class PageOptions(FleetOptions, StoreOptions, total=False):
    """The options of the JavaScript API."""

    prefix_cache: Annotated[int, Row(default=0)]
    """Bytes of the device that may hold what conversations began with, for others that begin so; by default none."""


class RequestOptions(PageOptions, total=False):
    """The options of a page's requests."""

    stall_timeout: float | None
    """Seconds without a byte after which a request for a file is aborted and tried again; by default as before, 30
    at first."""


class LoadOptions(RequestOptions, total=False):
    """All options."""

    passes: Collection[str] | None
    """The passes over the recorded step, out of `capstan.tape.PASSES`; None takes all that pay on the adapter."""
    progress: Progress | None
    """Called as `progress(what, done, total)` with bytes: first with 'weights', 0 and how many they are in all, before
    any is read, then for each file."""
    overlay: Mapping[str, Any] | None
    """Laid over genai_config.json: objects field by field, options of providers beside those that are there, every
    other value in its place; of a repository only `search` and the decoder's session options."""
    graphs: Mapping[str, bytes] | None
    """The graph's file from memory, by the name that the configuration has for it."""
    prefill_ms: float | None
    """Milliseconds that one run of a prompt may take on WebGPU: runs that are measured to take longer become shorter,
    and longer again where they are well below it; 250 unless given, `math.inf` for runs as long as memory allows.
    Software adapters always run 64 tokens."""
    max_length: int | None
    """Tokens that the longest sequence will have, the context's length if that is less: if its caches do not fit the
    device, that is OutOfMemoryError before any weight is read, which says how many tokens fit and with which caches
    more. None asks for the shortest sequence."""
    hears: bool | None
    """Whether it has to be a model of speech, or must not be: the others are refused before any weight is read."""
    on_found: Callable[[ModelFacts], object] | None
    """Called once the small files were read, before any weight is, with what the model is: its name, parameters, bytes
    and licence."""


@cache
def rows(table: Any) -> dict[str, Row]:
    """The rows of a class by their names."""
    kinds = get_type_hints(table, include_extras=True)
    return {name: getattr(kind, "__metadata__", (Row(),))[0] for name, kind in kinds.items()}


def taken(table: type[Table], given: Mapping[str, Any]) -> Table:
    """The options that a class has, as they are given or by default."""
    found = {
        name: row.default if given.get(name) is None else given[name] for name, row in rows(cast(Any, table)).items()
    }
    return cast(Table, found)


def require_options(table: Any, options: Mapping[str, Any], pages: bool = False) -> None:
    """Raise OptionError for a value outside of the choices or limits of an option of the class. The host checks options
    with `host`, unless `pages` is true."""
    for name, row in rows(table).items():
        value = options.get(name)
        if value is not None and (pages or not row.host) and (told := row.refusal(name, value)):
            raise OptionError(told)
