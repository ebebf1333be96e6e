"""The interface to Capstan's surroundings: a page, or CPython with the reference device."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ..errors import AsyncRequiredError
from ..guidance import TokenBytes, TokenWalks
from ..model_files.bounded_json import MOST_BYTES
from .ready_results import ReadyMade
from .spans import HostSpans
from .storage_interface import Backing, Progress, WeightData

__all__ = ["Host", "configure", "current_host", "use_host", "wait_here"]

T = TypeVar("T")


class Host(Protocol):
    """The host's files, clock and waits; `device.device_host.DeviceHost` has its devices, too."""

    def now(self) -> float:
        """Milliseconds on the clock of all time stamps."""

    def begin_trace(self) -> None:
        """Record the work of devices for a trace; a trace that has begun continues."""

    async def end_trace(self) -> HostSpans:
        """End recording; returns the recorded spans."""

    def can_wait(self) -> bool:
        """Whether a synchronous call may block here."""

    def wait(self, awaitable: Awaitable[T]) -> T:
        """Block until the awaitable is done."""

    def begin(self, work: Coroutine[Any, Any, None]) -> object:
        """Run a task in the background; its error is not reported."""

    def stall_after(self, seconds: float) -> None:
        """From now on abort a request after that time without a byte."""

    def configure(self, ort_url: str | None) -> None:
        """See `configure`."""

    async def read(
        self, folder: str, name: str, most: int = MOST_BYTES, progress: Callable[[int, int], None] | None = None
    ) -> bytes:
        """A file of a model folder. Raises ModelFileError if it cannot be read, or has more than `most` bytes."""

    async def read_optional(self, folder: str, name: str) -> bytes | None:
        """A file of a model folder, of at most MOST_BYTES; None if there is none."""

    async def read_graph(self, folder: str, name: str, keep: bool, progress: Progress) -> bytes:
        """An ONNX file. Weights inside it are not read, and become external data of the same file. With `keep` the file
        may be kept in the browser's storage. Raises ModelFileError.
        """

    async def read_weights(self, folder: str, name: str, offset: int, length: int) -> bytes:
        """Bytes of a data file of a model folder, read from storage if it is stored. Raises ModelFileError."""

    async def open_weights(self, folder: str, location: str, keep: bool) -> WeightData:
        """A data file of a model folder; with `keep` it may be kept in the browser's storage. Raises ModelFileError."""

    async def adopt_files(self, folder: str, names: Sequence[str]) -> str:
        """The address of these files of a folder of Python's own file system."""

    async def exists(self, folder: str, name: str) -> bool:
        """Whether a model folder has a file. Raises ModelFileError if that is unknown."""

    async def listing(self, folder: str) -> Mapping[str, int | None] | None:
        """The sizes of the files of a model folder and its subfolders by name (None if unknown); None if they cannot be
        listed.
        """

    async def dtypes(self, device: str) -> Sequence[str]:
        """The dtypes of capstan.loading.repository, the best for the device first."""

    def tokenizer_backend(self, tokenizer_json: str, tokenizer_config_json: str) -> Any:
        """The backend of capstan.tokenizer.Tokenizer."""

    def token_walks(self, tokens: TokenBytes) -> TokenWalks:
        """The tokens of a vocabulary on the host, for masks."""

    async def phonemize(self, text: str, language: str) -> str:
        """The phonemes of an English text, for a Kokoro model; `language` is 'en-US' or 'en-GB'. Raises OptionError if
        there is no library for it.
        """

    async def adopt(self, path: Any, keep: bool) -> str:
        """The name, ending in a slash, of the folder given to `Model.load`. With `keep` a hub's repository may be in
        the state of its last load, and the small files of a folder may be kept.
        """

    def gguf_place(self, path: str) -> tuple[str, str] | None:
        """The folder, for `adopt`, and the name of the GGUF file at a path or address; None for a folder. Raises
        OptionError for an address with a query that may change the answer.
        """

    async def ready_made(self, name: str, size: int, dtype: str) -> ReadyMade | None:
        """The site's ready-made results for GGUF files of this name, size and dtype; None if it has none."""

    async def forget(self, addresses: Sequence[str] | None) -> int:
        """Remove the kept small files of hubs' repositories and servers' folders that have, or are, one of these
        addresses; None means all. Returns the freed bytes of repositories.
        """

    async def backing(self, folder: str) -> Backing | None:
        """The storage for files of one kind that outlasts a page load or process; None if there is none."""


def wait_here(host: Host, awaitable: Coroutine[Any, Any, T], name: str, twin: str) -> T:
    """Block in the method `name` until the awaitable is done. If blocking is impossible, close the coroutine and raise
    AsyncRequiredError, which names the method's twin.
    """
    if not host.can_wait():
        awaitable.close()
        raise AsyncRequiredError(f"{name}() would have to wait here; use `{twin}`")
    return host.wait(awaitable)


_host: Host | None = None


def use_host(host: Host) -> None:
    """Set the host of this interpreter."""
    global _host
    _host = host


def current_host() -> Host:
    """The host of this interpreter."""
    assert _host is not None, "importing capstan sets a host"
    return _host


def configure(*, ort_url: str | None = None) -> None:
    """Set the address of onnxruntime-web, before the first model; None leaves it unchanged.

    `ort_url` is the address of a folder with the files of its `dist/`, relative to the page or, in a worker, to the
    worker's script. A page made by `build.py` knows it. Raises OptionError if onnxruntime-web was loaded already, and
    outside of a page.
    """
    current_host().configure(ort_url)
