"""Host memory defines what every device's operations on spans compute: against numpy, and edges by hand."""

from __future__ import annotations

import asyncio
import random
import time
from array import array
from typing import Any

import numpy as np
import pytest

from capstan.device.casts import ELEMENT_BYTES, convert
from capstan.device.device_interface import DeviceFacts
from capstan.device.host_memory import HostMemory
from capstan.errors import BindingError, BufferMismatchError, ClosedError, OutOfMemoryError
from capstan.memory import DeviceBuffer, DeviceSpan, MemoryType


class Heap(HostMemory):
    """Host memory alone."""

    type = "reference"

    def about(self) -> DeviceFacts:
        return DeviceFacts("heap")

    def provider_options_for_allocator_session(self) -> dict[str, Any]:
        raise NotImplementedError

    async def create_session(self, model: bytes, **_: Any) -> Any:
        raise NotImplementedError


class Elsewhere(Heap):
    type = "wasm"


@pytest.fixture
def heap() -> Heap:
    return Heap()


def filled(heap: Heap, data: bytes) -> DeviceBuffer:
    buffer = heap.allocate(len(data), label="test")
    heap.copy_cpu_to_device(buffer.span(), data)
    return buffer


def content(heap: Heap, span: DeviceSpan) -> bytes:
    return asyncio.run(heap.copy_device_to_cpu(span)).data


# Casts


def halfs() -> bytes:
    return np.arange(65536, dtype=np.uint16).tobytes()


def floats() -> bytes:
    """Random bits, every float16, neighbours, halfway points and theirs, and the ends of the integers' ranges."""
    source = np.random.default_rng(1)
    with np.errstate(all="ignore"):
        exact = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32).view(np.uint32)
    near = [
        exact,
        *(exact[step % 5 :: 5] + np.uint32(step % 2**32) for step in (-0x1000, -1, 1, 0xFFF, 0x1000, 0x1001)),
    ]
    ends = [
        sign * 2.0**exponent for sign in (-1, 1) for exponent in (-149, -126, -25, -24, -14, 15, 16, 30, 31, 32, 63)
    ]
    ends += [65504.0, 65519.996, 65520.0, 65536.0, 0.0, -0.0, 0.5, -0.999, 1.5, -1.5, np.inf, -np.inf, np.nan, 3e38]
    edges = np.array(ends, np.float32).view(np.uint32)
    words = [source.integers(0, 2**32, 20000, dtype=np.uint32), *near, edges - 1, edges, edges + 1]
    return np.concatenate(words).astype(np.uint32).tobytes()


def integers(bits: int) -> bytes:
    """Random integers of every magnitude, and neighbours of powers of two and of float32's halfway points."""
    source = random.Random(bits)
    values = [source.getrandbits(bits) >> source.randrange(bits) for _ in range(20000)]
    for exponent in range(bits):
        power = 1 << exponent
        values += [power + step for step in (-2, -1, 0, 1, 2)]
        if exponent > 24:
            half, ulp = power >> 24, power >> 23
            values += [power + odd * ulp + half + step for odd in (0, 1) for step in (-1, 0, 1)]
    values += [65503, 65504, 65519, 65520, 65521]
    values += [-value for value in values]
    return b"".join((value % 2**bits).to_bytes(bits // 8, "little") for value in values)


INPUTS = {
    "float32": floats(),
    "float16": halfs(),
    "int32": integers(32),
    "int64": integers(64),
    "uint32": integers(32),
}
PAIRS = [(source, destination) for source in ELEMENT_BYTES for destination in ELEMENT_BYTES]


@pytest.mark.parametrize(("source", "destination"), PAIRS)
def test_casts_are_numpys_where_it_defines_them(source: str, destination: str) -> None:
    values = np.frombuffer(INPUTS[source], source)
    got = np.frombuffer(convert(INPUTS[source], source, destination), destination)
    assert len(got) == len(values)
    if "float" in source and "int" in destination:
        # numpy leaves out-of-range floats undefined; every float32 is exact as a float64, limits are exact as integers
        limits = np.iinfo(destination)
        with np.errstate(all="ignore"):
            inside = (np.trunc(values) >= float(limits.min)) & (values.astype(np.float64) < float(limits.max + 1))
            expected = values[inside].astype(destination)
            below, above = values < float(limits.min), values.astype(np.float64) >= float(limits.max + 1)
        assert (got[inside] == expected).all()
        assert (got[below] == limits.min).all()
        assert (got[above] == limits.max).all()
        assert (got[np.isnan(values)] == 0).all()
        assert inside.sum() > 1000
        return
    with np.errstate(all="ignore"):
        expected = values.astype(destination)
    if "float" in source and "float" in destination and source != destination:
        lost = np.isnan(values)
        assert np.isnan(got[lost]).all()
        assert (np.signbit(got[lost]) == np.signbit(values[lost])).all()
        got, expected = got[~lost], expected[~lost]
    assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("source", "bits", "destination", "expected"),
    [
        ("float32", 0x7F800001, "float16", 0x7E00),  # a NaN becomes quiet
        ("float32", 0xFF802000, "float16", 0xFE01),  # and keeps its sign and high bits
        ("float16", 0x7C01, "float32", 0x7FC02000),
        ("float16", 0xFE00, "float32", 0xFFC00000),
        ("float16", 0x7C01, "float16", 0x7C01),  # unless nothing is converted
        ("float32", 0x477FEFFF, "float16", 0x7BFF),  # 65519.996
        ("float32", 0x477FF000, "float16", 0x7C00),  # 65520 is halfway to 65536
        ("float32", 0x33000000, "float16", 0x0000),  # half of the least subnormal: to even
        ("float32", 0x33000001, "float16", 0x0001),
        ("float32", 0x33C00000, "float16", 0x0002),  # 1.5 times the least: to even
        ("float16", 0x0001, "float32", 0x33800000),
        ("float32", 0xBF7FFFFF, "int32", 0),  # towards zero
        ("float32", 0x4F000000, "int32", 0x7FFFFFFF),
        ("float32", 0xCF000000, "int32", 0x80000000),
        ("float32", 0xBF800000, "uint32", 0),
        ("float32", 0x4F800000, "uint32", 0xFFFFFFFF),
        ("float32", 0x5F000000, "int64", 0x7FFFFFFFFFFFFFFF),
        ("float32", 0xDF000000, "int64", 0x8000000000000000),
        ("float16", 0x7C00, "int64", 0x7FFFFFFFFFFFFFFF),
        ("float16", 0xFC00, "uint32", 0),
        ("int64", 0x4000004000000001, "float32", 0x5E800001),  # rounding to float64 first would give 0x5e800000
        ("int64", 0xBFFFFFBFFFFFFFFF, "float32", 0xDE800001),
        ("int64", 0x8000000000000000, "float32", 0xDF000000),
        ("int64", 0x123456789ABCDEF0, "int32", 0x9ABCDEF0),
        ("uint32", 0xFFFFFFFF, "int64", 0xFFFFFFFF),
        ("int32", 0xFFFFFFFF, "int64", 0xFFFFFFFFFFFFFFFF),
        ("uint32", 0xFFFFFFFF, "float32", 0x4F800000),
        ("int32", 65520, "float16", 0x7C00),
    ],
)
def test_cast_edges(source: str, bits: int, destination: str, expected: int) -> None:
    data = bits.to_bytes(ELEMENT_BYTES[source], "little")
    assert int.from_bytes(convert(data, source, destination), "little") == expected, hex(bits)


def test_a_cast_reads_its_source_first(heap: Heap) -> None:
    buffer = filled(heap, array("i", [1, -2, 3]).tobytes() + b"\x55" * 13)
    heap.cast(buffer.span(0, 12), "int32", buffer.span(1, 24), "int64")
    assert content(heap, buffer.span()) == b"\x01" + array("q", [1, -2, 3]).tobytes()


# Copies


def test_copies_of_random_spans_in_order(heap: Heap) -> None:
    source = random.Random(5)
    expected = [bytearray(source.randbytes(64)) for _ in range(3)]
    buffers = [filled(heap, bytes(data)) for data in expected]
    for _ in range(100):
        pairs = []
        for _ in range(3):
            a, b, length = source.randrange(3), source.randrange(3), source.randrange(33)
            at, to = source.randrange(65 - length), source.randrange(65 - length)
            pairs.append((buffers[a].span(at, length), buffers[b].span(to, length)))
            expected[b][to : to + length] = bytes(expected[a][at : at + length])
        heap.copy_tensors(pairs)
        assert [content(heap, buffer.span()) for buffer in buffers] == expected


def test_a_write_takes_any_buffer_of_the_spans_length(heap: Heap) -> None:
    buffer = filled(heap, b"\xaa" * 16)
    inputs: list[Any] = [b"12345678", array("d", [0.1]), np.arange(8, dtype=np.int16)[::2], np.array([[1, 2]], ">i4")]
    for data in inputs:
        heap.copy_cpu_to_device(buffer.span(3, 8), data)
        assert content(heap, buffer.span()) == b"\xaa" * 3 + memoryview(data).tobytes() + b"\xaa" * 5
    heap.copy_cpu_to_device(buffer.span(3, 0), np.zeros((0, 4)))


def test_a_readback_moves_the_subspan_only(heap: Heap) -> None:
    buffer = filled(heap, bytes(range(16)))
    out = np.zeros((2, 3), np.int16)
    readback = asyncio.run(heap.copy_device_to_cpu(buffer.span(1, 12), out))
    assert out.tobytes() == bytes(range(1, 13))
    assert readback.data == b""
    readback = asyncio.run(heap.copy_device_to_cpu(buffer.span(7, 2)))
    assert readback.data == b"\x07\x08"
    assert readback.waiting_ms == 0
    large = heap.allocate(1 << 24)
    started = time.perf_counter()
    readback = asyncio.run(heap.copy_device_to_cpu(large.span(), bytearray(large.size)))
    assert 0 < readback.copying_ms <= 1e3 * (time.perf_counter() - started)


@pytest.mark.parametrize("out", [bytes(4), np.zeros((2, 4), np.uint8)[:, :2]])
def test_a_readback_into_what_cannot_take_it_is_refused(heap: Heap, out: Any) -> None:
    buffer = heap.allocate(4)
    with pytest.raises(BufferMismatchError, match="`out`.*give a writable array in C order"):
        asyncio.run(heap.copy_device_to_cpu(buffer.span(), out))


def test_zero_touches_the_span_only(heap: Heap) -> None:
    buffer = filled(heap, b"\xff" * 12)
    heap.zero(buffer.span(3, 6))
    assert content(heap, buffer.span()) == b"\xff" * 3 + bytes(6) + b"\xff" * 3


# Masks and positions


@pytest.mark.parametrize(("dtype", "code"), [("int64", "q"), ("int32", "i")])
def test_a_mask_grows_and_shrinks_row_by_row_and_touches_only_what_changes(heap: Heap, dtype: str, code: str) -> None:
    buffer = filled(heap, b"\xcc" * (2 + 4 * 5 * array(code).itemsize + 2))
    heap.update_attention_mask(buffer.span(2, buffer.size - 4), dtype, 5, [0, 4, 2, 0], [3, 1, 2, 5])
    got = content(heap, buffer.span())
    kept = int.from_bytes(b"\xcc" * array(code).itemsize, "little", signed=True)
    rows = [[1, 1, 1, kept, kept], [kept, 0, 0, 0, kept], [kept] * 5, [1] * 5]
    assert array(code, got[2:-2]).tolist() == [value for row in rows for value in row]
    assert got[:2] + got[-2:] == b"\xcc" * 4


@pytest.mark.parametrize(("dtype", "code"), [("int64", "q"), ("int32", "i")])
def test_positions_count_up_in_each_row(heap: Heap, dtype: str, code: str) -> None:
    buffer = filled(heap, b"\xcc" * (1 + 3 * 2 * array(code).itemsize + 1))
    heap.update_position_ids(buffer.span(1, buffer.size - 2), dtype, [7, -1, 2**31 - 2], 2)
    got = content(heap, buffer.span())
    assert array(code, got[1:-1]).tolist() == [7, 8, -1, 0, 2**31 - 2, 2**31 - 1]
    assert got[:1] + got[-1:] == b"\xcc" * 2


# Buffers


def test_buffers_are_zeros_and_freed_once(heap: Heap) -> None:
    buffer = heap.allocate(5, MemoryType.HOST_ACCESSIBLE, label="ids", category="io", owner="generator 1")
    assert (buffer.label, buffer.category, buffer.owner) == ("ids", "io", "generator 1")
    assert buffer.memory.memory_type is MemoryType.HOST_ACCESSIBLE
    assert content(heap, buffer.span()) == bytes(5)
    data = buffer.handle
    view = memoryview(data)
    buffer.close()
    buffer.close()
    assert buffer.closed
    assert view.tobytes() == bytes(5)  # a view that is still held stays good
    empty = heap.allocate(3)
    data = empty.handle
    empty.close()
    assert data == b""  # the bytes are given back though somebody holds the buffer


def test_a_buffer_that_does_not_fit_is_refused(heap: Heap) -> None:
    with pytest.raises(OutOfMemoryError, match=r"^buffer 'kv' of \d+ bytes does not fit into memory; free others or"):
        heap.allocate(2**62, label="kv")
    with pytest.raises(BufferMismatchError, match=r"is -1 bytes; it must be at least 0"):
        heap.allocate(-1)


# Bad input: nothing is written


@pytest.mark.parametrize(
    ("operation", "arguments", "error", "message"),
    [
        ("copy_tensors", lambda s: ([(s(0, 4), s(4, 4)), (s(0, 4), s(4, 8))],), BufferMismatchError, "4 bytes cannot"),
        ("copy_cpu_to_device", lambda s: (s(0, 4), b"123"), BufferMismatchError, "3 bytes cannot be written"),
        ("cast", lambda s: (s(0, 8), "float32", s(8, 8), "uint8"), BindingError, "'uint8' cannot be cast"),
        ("cast", lambda s: (s(0, 8), "float32", s(8, 8), "int64"), BufferMismatchError, "8 bytes of float32 cannot"),
        ("cast", lambda s: (s(0, 6), "float32", s(8, 6), "uint32"), BufferMismatchError, "same number of elements"),
        ("update_attention_mask", lambda s: (s(0, 8), "uint8", 8, [0], [1]), BindingError, "mask is 'uint8'; it must"),
        (
            "update_attention_mask",
            lambda s: (s(0, 8), "int32", 2, [0], [3]),
            BindingError,
            "length 3; it must be from 0",
        ),
        ("update_attention_mask", lambda s: (s(0, 8), "int32", 2, [-1], [1]), BindingError, "length -1"),
        ("update_attention_mask", lambda s: (s(0, 8), "int32", 2, [0, 0], [1]), BindingError, "2 old and 1 new"),
        ("update_attention_mask", lambda s: (s(0, 9), "int32", 2, [0], [1]), BufferMismatchError, "takes 8 bytes"),
        ("update_position_ids", lambda s: (s(0, 8), "float32", [0], 2), BindingError, "positions is 'float32'"),
        (
            "update_position_ids",
            lambda s: (s(0, 8), "int32", [0], 3),
            BufferMismatchError,
            "takes 12 bytes",
        ),
        (
            "update_position_ids",
            lambda s: (s(0, 8), "int32", [2**31 - 1], 2),
            BindingError,
            "2 positions from 214",
        ),
        ("update_position_ids", lambda s: (s(0, 0), "int32", [0], -1), BindingError, "positions is -1; it must be at"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    heap: Heap, operation: str, arguments: Any, error: type[Exception], message: str
) -> None:
    buffer = filled(heap, b"\xaa" * 16)
    with pytest.raises(error, match=message):
        getattr(heap, operation)(*arguments(buffer.span))
    assert content(heap, buffer.span()) == b"\xaa" * 16


def test_buffers_of_another_device_and_closed_ones_are_refused(heap: Heap) -> None:
    mine, other, closed = heap.allocate(8), Elsewhere().allocate(8, label="theirs"), heap.allocate(8)
    closed.close()
    for bad, error in ((other, BufferMismatchError), (closed, ClosedError)):
        for pair in ((mine, bad), (bad, mine)):
            with pytest.raises(error):
                heap.copy_tensors([(pair[0].span(), pair[1].span())])
            with pytest.raises(error):
                heap.cast(pair[0].span(), "float32", pair[1].span(), "int32")
        for operation, arguments in {
            "zero": (),
            "copy_cpu_to_device": (bytes(8),),
            "update_attention_mask": ("int32", 2, [0], [1]),
            "update_position_ids": ("int32", [0], 2),
        }.items():
            with pytest.raises(error):
                getattr(heap, operation)(bad.span(), *arguments)
        with pytest.raises(error):
            asyncio.run(heap.copy_device_to_cpu(bad.span()))
