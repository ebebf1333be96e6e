"""Implements the Host of CPython: it reads model folders on disk, and the reference device runs them."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..device.device_host import Opening, Planned, fit_beside
from ..device.device_interface import DeviceInterface
from ..device.model_interface import DeviceModel
from ..device.model_memory import ModelMemory
from ..device.model_origin import ModelOrigin
from ..errors import DeviceUnavailableError, OptionError
from ..guidance import TokenBytes, TokenWalks
from ..host.disk_file import open_file, read_file
from ..host.spans import HostSpans
from ..host.storage_interface import MOST_GRAPH_BYTES, Backing, Progress
from ..loading.repository import ON_CPU
from ..memory import Fit
from ..model_files.bounded_json import MOST_BYTES
from ..model_files.file_names import is_gguf, split_name
from ..model_files.genai_config import DECODER
from ..model_files.hub import HubRepository
from ..weights.manifest import MANIFEST_SUFFIX
from ..weights.weight_file import WeightFile
from .data_file import DiskSource
from .rust_tokenizer import LocalBackend

if TYPE_CHECKING:
    from ..graph import Unpack

__all__ = ["LocalHost"]

T = TypeVar("T")


class LocalHost:
    """Implements capstan.host.Host on CPython."""

    def now(self) -> float:
        return time.perf_counter() * 1e3

    def begin_trace(self) -> None:
        """Does nothing: on CPython all spans are Python's."""

    async def end_trace(self) -> HostSpans:
        about = {"runtime": f"CPython on {sys.platform}"}
        origin = time.time() * 1e3 - self.now()
        return HostSpans([], 0, origin, "the reference device has no GPU", about=about)

    def can_wait(self) -> bool:
        return True

    def wait(self, awaitable: Awaitable[T]) -> T:
        """Run the awaitable to its end. Inside a running event loop it runs on another thread, since nothing here needs
        the loop.
        """

        async def result() -> T:
            return await awaitable

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(result())
        return on_a_thread(result())

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the task immediately: a notebook's loop does not run while a synchronous call blocks it."""
        self.wait(work)

    def stall_after(self, seconds: float) -> None:
        """Does nothing: reads from a disk do not stall."""

    def configure(self, ort_url: str | None) -> None:
        raise OptionError("there is no page to configure here: models run on the reference device; leave this call out")

    async def read(
        self, folder: str, name: str, most: int = MOST_BYTES, progress: Callable[[int, int], None] | None = None
    ) -> bytes:
        data = read_file(Path(folder) / name, most)
        if progress is not None:
            progress(len(data), len(data))
        return data

    async def read_optional(self, folder: str, name: str) -> bytes | None:
        return await self.read(folder, name) if is_there(Path(folder) / name) else None

    async def read_graph(self, folder: str, name: str, keep: bool, progress: Progress) -> bytes:
        from ..graph import without_weights  # noqa: PLC0415  (in the extra `reference`)

        data = await self.read(folder, name, MOST_GRAPH_BYTES)

        async def read(start: int, length: int) -> bytes:
            return data[start : start + length]

        return await without_weights(read, len(data), folder + name, name.rpartition("/")[2])

    async def read_weights(self, folder: str, name: str, offset: int, length: int) -> bytes:
        with open_file(Path(folder) / name) as file:
            file.seek(offset)
            return file.read(length)

    async def open_weights(self, folder: str, location: str, keep: bool) -> WeightFile:
        source = DiskSource(Path(folder) / location)
        manifest = location + MANIFEST_SUFFIX
        return await WeightFile.open(source, None, lambda: self.read_optional(folder, manifest))

    async def adopt_files(self, folder: str, names: Sequence[str]) -> str:
        return folder

    async def exists(self, folder: str, name: str) -> bool:
        return (Path(folder) / name).is_file()

    async def listing(self, folder: str) -> dict[str, int | None]:
        return files_below(Path(folder))

    async def dtypes(self, device: str) -> tuple[str, ...]:
        return ON_CPU

    def tokenizer_backend(self, tokenizer_json: str, tokenizer_config_json: str) -> Any:
        return LocalBackend(tokenizer_json, tokenizer_config_json)

    def token_walks(self, tokens: TokenBytes) -> TokenWalks:
        from .numpy_token_walks import LocalTokenWalks  # noqa: PLC0415  (in the extra `reference`)

        return LocalTokenWalks(tokens)

    async def ready_made(self, name: str, size: int, dtype: str) -> None:
        return None

    async def phonemize(self, text: str, language: str) -> str:
        raise OptionError(
            "phonemes are made only in a page: give a function `phonemize`, such as misaki's, or phonemes"
        )

    def narrow_rows(self, rows: bytes | bytearray | memoryview, dtype: str, bits: int) -> bytes:
        from ..device.reference.narrowed import narrowed  # noqa: PLC0415  (numpy)

        return narrowed(rows, dtype, bits)

    def widen_rows(self, rows: bytes | bytearray | memoryview, dtype: str, bits: int) -> bytes:
        from ..device.reference.narrowed import widened  # noqa: PLC0415  (numpy)

        return widened(rows, dtype, bits)

    def unpack_rows(self, rows: bytes, how: Unpack) -> bytes:
        from ..device.reference.unpacked import unpacked  # noqa: PLC0415  (numpy)

        made: bytes = unpacked(how, rows).tobytes()
        return made

    async def forget(self, addresses: Sequence[str] | None) -> int:
        return 0

    async def adopt(self, path: Any, keep: bool) -> str:
        if isinstance(path, HubRepository):
            raise OptionError(f"{path} can be read only in a page; download the repository and give its directory")
        if not isinstance(path, str | os.PathLike):
            raise OptionError(f"a model's path is {path!r}; it must be the path of a directory")
        folder = os.fspath(path)
        require_possible(folder)
        return folder if folder.endswith("/") else folder + "/"

    def gguf_place(self, path: str) -> tuple[str, str] | None:
        folder, name = split_name(path)
        return (folder or "./", name) if is_gguf(name) else None

    async def backing(self, folder: str) -> Backing | None:
        return None

    async def open_model(self, opening: Opening, device: str) -> DeviceModel:
        require_reference(device)
        from ..device.reference.reference_model import ReferenceModel  # noqa: PLC0415  (in the extra `reference`)
        from ..device.table_reader import open_tables  # noqa: PLC0415  (protobuf)

        model, below = ReferenceModel(opening.folder, opening.config, opening.graphs), opening.config.decoder.folder
        files = {each: await self.open_weights(opening.folder + below, each, False) for each in model.data_files}
        model.origin = ModelOrigin(model.graph_digest, {**files})

        async def opened(location: str) -> WeightFile:
            return files[location]

        model.disk, _ = await open_tables(model.about.tables, opened, opening.progress)
        return model

    async def has_webgpu(self) -> bool:
        return False

    async def open_device(self, device: str) -> DeviceInterface:
        if device == "webgpu":
            raise DeviceUnavailableError("device 'webgpu' was requested, but CPython has only 'cpu'; use it in a page")
        require_reference(device, "auto", "cpu", "reference")
        from ..device.reference.reference_device import ReferenceDevice  # noqa: PLC0415  (in the extra `reference`)

        return ReferenceDevice()

    async def fit(
        self,
        model: Planned,
        draft: Planned | None,
        device: str,
        batch_size: int,
        max_length: int | None,
        budget: int | None,
    ) -> Fit:
        require_reference(device)
        from ..device.reference.reference_model import reference_memory  # noqa: PLC0415  (in the extra `reference`)

        async def memory_of(planned: Planned) -> ModelMemory:
            file = planned.config.decoder.filename
            graph = planned.graphs.get(DECODER) or await self.read(planned.folder, file, MOST_GRAPH_BYTES)
            return reference_memory(graph, planned.config)

        return await fit_beside(memory_of, model, draft, batch_size, max_length, budget)


def is_there(path: Path) -> bool:
    """Whether the folder has an entry of that name, including a broken link."""
    return os.path.lexists(path)


def require_possible(folder: str) -> None:
    """Raise OptionError for an invalid path. A missing directory raises when its files are read."""
    try:
        with suppress(OSError):
            Path(folder).stat()
    except ValueError as error:
        raise OptionError(f"a model's path is {folder!r}, which no directory can have ({error})") from error


def files_below(folder: Path) -> dict[str, int | None]:
    """The sizes of the files of a folder and of its direct subfolders, by name; a model has no others."""
    found = [path for depth in ("*", "*/*") for path in folder.glob(depth) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in found}


def require_reference(device: str, *names: str) -> None:
    """Raise OptionError for devices that CPython does not have; it has 'auto', 'cpu' and 'reference' unless names are
    given."""
    allowed = names or ("auto", "cpu", "reference")
    if device not in allowed:
        raise OptionError(f"device is {device!r}; on CPython it must be {' or '.join(map(repr, allowed))}")


def on_a_thread(coroutine: Coroutine[Any, Any, T]) -> T:
    outcome: list[T] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(asyncio.run(coroutine))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]
