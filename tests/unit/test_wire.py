"""The calls of the engine: what build.py writes from the table, and that stand-ins keep to it."""

from __future__ import annotations

import inspect

from buildtools.wire import engine_calls, engine_types
from capstan.device.webgpu.gpu_engine import GpuEngine
from tests.unit.paper_engine import PaperEngine

TABLE = '''
from ...graph import FedLengths

__all__ = ["Difference"]

@js("engine")
class GpuAdapter(Protocol):
    number: int

    @by_hand
    def close(self) -> None: ...
    def counters(self) -> dict[str, int]:
        """All of them."""

@js("tapes")
class GpuTapes(GpuAdapter, Protocol):
    @js("sessions", span="bind it")
    async def bind_all(self, session: int, lengths: FedLengths | None = None) -> int: ...
    def add_table(self, tape: int, counts: bytes) -> None: ...
    def burst(self, sample_first: bool) -> Awaitable[Sequence[float]]: ...
    async def compare(self, pairs: Sequence[int]) -> list[Difference]: ...
    async def counts_of_step(self, tape: int) -> bytes: ...
'''
PYTHON = """
    def counters(self) -> dict[str, int]:
        with typed_errors():
            found: dict[str, int] = json.loads(self._engine.counters())
            return found

    @spanned("bind it")
    async def bind_all(self, session: int, lengths: FedLengths | None=None) -> int:
        with typed_errors():
            return int(await self._sessions.bindAll(session, to_json(lengths)))

    def add_table(self, tape: int, counts: bytes) -> None:
        with typed_errors():
            self._tapes.addTable(tape, counts)

    def burst(self, sample_first: bool) -> Awaitable[Sequence[float]]:
        with typed_errors():
            return arriving(self._tapes.burst(sample_first))

    async def compare(self, pairs: Sequence[int]) -> list[Difference]:
        with typed_errors():
            return [Difference(**fields) for fields in json.loads(await self._tapes.compare(to_json(pairs)))]

    async def counts_of_step(self, tape: int) -> bytes:
        with typed_errors():
            return bytes((await self._tapes.countsOfStep(tape)).to_bytes())
"""
TYPESCRIPT = """
export interface EngineCalls {
  /** All of them. */
  counters(): Json;
}

export interface SessionsCalls {
  bindAll(session: number, lengths: Json): Promise<number>;
}

export interface TapesCalls {
  addTable(tape: number, counts: PyProxy): void;
  burst(sampleFirst: boolean): Promise<Float64Array>;
  compare(pairs: Json): Promise<Json>;
  countsOfStep(tape: number): Promise<Uint8Array>;
}
"""


def test_each_method_of_the_table_is_a_call() -> None:
    written = engine_calls(TABLE)
    assert written.endswith(PYTHON)
    assert "from ..graph import FedLengths\n" in written
    assert "from ..device.webgpu.gpu_engine import Difference\n" in written
    assert TYPESCRIPT in engine_types(TABLE)


def test_the_paper_engine_has_methods_of_the_table_only_with_its_parameters() -> None:
    for name, method in vars(PaperEngine).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            assert parameters(method) == parameters(getattr(GpuEngine, name)), name


def parameters(method: object) -> list[tuple[str, object, bool]]:
    """Names and defaults, and whether the method is awaited."""
    assert callable(method)
    awaited = inspect.iscoroutinefunction(method)
    return [(given.name, given.default, awaited) for given in inspect.signature(method).parameters.values()]
