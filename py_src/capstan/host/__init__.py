"""Defines the interface to Capstan's surroundings: a page, or CPython with the reference device."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..errors import AsyncRequiredError
from ..guidance import TokenBytes, TokenWalks
from ..model_files.bounded_json import MOST_BYTES
from .ready_results import ReadyMade
from .spans import HostSpans
from .storage_interface import Backing, Progress, WeightData

if TYPE_CHECKING:
    from ..graph import Unpack

__all__ = ["Host", "configure", "current_host", "use_host", "wait_here"]

T = TypeVar("T")


class Host(Protocol):
    """The interface to the host's files, clock and waits. `device.device_host.DeviceHost` adds the host's devices."""

    def now(self) -> float:
        """The time in milliseconds. All time stamps use this clock."""

    def begin_trace(self) -> None:
        """Record the work of devices for a trace. A trace that has already begun continues."""

    async def end_trace(self) -> HostSpans:
        """End the recording, and return the recorded spans."""

    def can_wait(self) -> bool:
        """Whether a synchronous call may block at this point."""

    def wait(self, awaitable: Awaitable[T]) -> T:
        """Block until the awaitable is done."""

    def begin(self, work: Coroutine[Any, Any, None]) -> object:
        """Run a task in the background; its error is not reported."""

    def stall_after(self, seconds: float) -> None:
        """From now on, abort any request that receives no byte for this time."""

    def configure(self, ort_url: str | None) -> None:
        """Set the address of onnxruntime-web; see the function `configure`."""

    async def read(
        self, folder: str, name: str, most: int = MOST_BYTES, progress: Callable[[int, int], None] | None = None
    ) -> bytes:
        """Read a file of a model folder. Raises ModelFileError if it cannot be read, or has more than `most` bytes."""

    async def read_optional(self, folder: str, name: str) -> bytes | None:
        """Read a file of a model folder, of at most MOST_BYTES. Returns None if the folder has no such file."""

    async def read_graph(self, folder: str, name: str, keep: bool, progress: Progress) -> bytes:
        """Read an ONNX file without the weights inside it: these become external data that lie in the same file. With
        `keep` the browser's storage may keep the file. Raises ModelFileError.
        """

    async def read_weights(self, folder: str, name: str, offset: int, length: int) -> bytes:
        """Read bytes of a data file of a model folder, from storage if the file is stored. Raises ModelFileError."""

    async def open_weights(self, folder: str, location: str, keep: bool) -> WeightData:
        """Open a data file of a model folder. With `keep` the browser's storage may keep the file. Raises
        ModelFileError.
        """

    async def adopt_files(self, folder: str, names: Sequence[str]) -> str:
        """Make these files of a folder in Python's own file system readable for the host, and return the folder's
        address.
        """

    async def exists(self, folder: str, name: str) -> bool:
        """Whether a model folder has a file. Raises ModelFileError if that is unknown."""

    async def listing(self, folder: str) -> Mapping[str, int | None] | None:
        """The sizes of the files of a model folder and its subfolders, by name; an unknown size is None. The result is
        None if the files cannot be listed.
        """

    async def dtypes(self, device: str) -> Sequence[str]:
        """The dtypes of capstan.loading.repository. The best dtype for the device is first."""

    def tokenizer_backend(self, tokenizer_json: str, tokenizer_config_json: str) -> Any:
        """Make the backend that does the work of a capstan.tokenizer.Tokenizer."""

    def token_walks(self, tokens: TokenBytes) -> TokenWalks:
        """Put the tokens of a vocabulary into the host's memory, where masks are computed from them."""

    async def phonemize(self, text: str, language: str) -> str:
        """The phonemes of an English text, for a Kokoro model; `language` is 'en-US' or 'en-GB'. Raises OptionError if
        no library for this is installed.
        """

    async def adopt(self, path: Any, keep: bool) -> str:
        """The host's name for the folder that was given to `Model.load`; it ends in a slash. With `keep`, a hub's
        repository may stay at the state of its last load, and the small files of a folder may be kept.
        """

    def gguf_place(self, path: str) -> tuple[str, str] | None:
        """For the path or address of a GGUF file: its folder, for `adopt`, and its name. The result is None for a
        folder. Raises OptionError for an address with a query that may change the answer.
        """

    async def ready_made(self, name: str, size: int, dtype: str) -> ReadyMade | None:
        """The site's ready-made results for GGUF files of this name, size and dtype; None if the site has no such
        results.
        """

    def narrow_rows(self, rows: bytes | bytearray | memoryview, dtype: str, bits: int) -> bytes:
        """Rows of a float16 or float32 cache in blocks of 8 or 4 bits; see capstan.device.narrow_rows."""

    def widen_rows(self, rows: bytes | bytearray | memoryview, dtype: str, bits: int) -> bytes:
        """The numbers of such blocks."""

    def unpack_rows(self, rows: bytes, how: Unpack) -> bytes:
        """The form that a buffer has of `how.rows` rows of a table of a GGUF file."""

    async def forget(self, addresses: Sequence[str] | None) -> int:
        """Remove the kept small files of hubs' repositories and servers' folders: all for `None`, else those of the
        repositories and folders with one of these addresses. Returns the freed bytes of repositories.
        """

    async def backing(self, folder: str) -> Backing | None:
        """The storage, in `folder`, for files of one kind; it outlasts page loads and processes. None if the host has
        no such storage.
        """


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
    """Set the address of onnxruntime-web, before the first model is loaded. None leaves the address unchanged.

    `ort_url` is the address of a folder with the files of its `dist/`, relative to the page or, in a worker, to the
    worker's script. A page made by `build.py` knows this address. Raises OptionError if onnxruntime-web was loaded
    already, and outside of a page.
    """
    current_host().configure(ort_url)
