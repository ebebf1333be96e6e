"""Every branch of `devices_are_memory_compatible`, each with a place on the other side of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from capstan.memory import (
    Capabilities,
    MemoryInfo,
    MemoryType,
    Way,
    devices_are_memory_compatible,
    way_between,
    why_incompatible,
)

STORAGE = MemoryInfo("WebGPU_Buffer", "webgpu", MemoryType.DEFAULT)
STAGING = MemoryInfo("WebGPU_Staging", "webgpu", MemoryType.HOST_ACCESSIBLE, heap="gpu-process")
PYTHON = MemoryInfo("Cpu", "reference", MemoryType.DEFAULT, heap="python")
PYTHON_SHARED = replace(PYTHON, memory_type=MemoryType.HOST_ACCESSIBLE)
ORT = MemoryInfo("Cpu", "wasm", MemoryType.DEFAULT, heap="onnxruntime")
UNIFIED = replace(STAGING, name="Unified", device="igpu", heap="python")
"""HOST_ACCESSIBLE memory of another device that lies in Python's heap."""

PROBED = Capabilities(
    adapter="test",
    software=True,
    staging=True,
    mappable_storage=False,
    f16=False,
    subgroups=False,
    timestamps=False,
    int64=True,
    in_place_cache=True,
    max_buffer_size=1 << 28,
    max_binding_size=1 << 27,
    offset_alignment=256,
)
NO_STAGING = replace(PROBED, staging=False, missing=(("staging", "the pattern came back as zeros"),))
MAPPABLE = replace(PROBED, mappable_storage=True)


def compatible(a: MemoryInfo, b: MemoryInfo, capabilities: Capabilities | None = PROBED) -> bool:
    """The answer, which must not depend on the order."""
    answer = devices_are_memory_compatible(a, b, capabilities)
    assert devices_are_memory_compatible(b, a, capabilities) is answer
    assert (why_incompatible(a, b, capabilities) is None) is answer
    return answer


def test_cpu_memory_in_one_heap_is_one_memory() -> None:
    assert compatible(PYTHON, PYTHON)
    assert compatible(PYTHON, replace(PYTHON, device="wasm", device_id=3), None)


def test_two_wasm_heaps_are_two_memories() -> None:
    assert not compatible(PYTHON, ORT)
    assert why_incompatible(PYTHON, ORT) == "Cpu (default) is in the python heap, Cpu (default) in the onnxruntime heap"


def test_host_accessible_memory_of_a_cpu_device_is_its_memory() -> None:
    assert compatible(PYTHON, PYTHON_SHARED)
    assert compatible(PYTHON, PYTHON_SHARED, None)


def test_host_accessible_memory_of_another_device_is_the_cpus_where_its_heap_is() -> None:
    assert compatible(PYTHON, UNIFIED)
    assert not compatible(ORT, UNIFIED)


def test_mapped_staging_memory_is_no_wasm_heap() -> None:
    assert not compatible(PYTHON, STAGING)
    assert not compatible(ORT, STAGING, MAPPABLE)


@pytest.mark.parametrize(("capabilities", "answer"), [(MAPPABLE, True), (PROBED, False), (None, False)])
def test_a_device_computes_in_its_host_accessible_memory_if_the_probe_says_so(
    capabilities: Capabilities | None, answer: bool
) -> None:
    assert compatible(STAGING, STORAGE, capabilities) is answer
    reason = why_incompatible(STAGING, STORAGE, capabilities)
    expected = {
        None: "is no storage; its usage is copy_dst | map_read",
        PROBED: "its probe says mappable_storage is False",
    }
    assert answer or expected[capabilities] in str(reason)


def test_without_a_probe_nothing_is_known_of_other_devices() -> None:
    unified = replace(UNIFIED, heap="")
    reason = why_incompatible(unified, replace(unified, memory_type=MemoryType.DEFAULT))
    assert reason == "whether igpu device 0 computes in host accessible memory was not probed"


@pytest.mark.parametrize(
    ("source", "destination", "way"),
    [
        (PYTHON, PYTHON_SHARED, Way.SHARED),
        (STORAGE, STORAGE, Way.SHARED),
        (PYTHON, STORAGE, Way.WRITE),
        (PYTHON, STAGING, Way.WRITE),
        (STORAGE, STAGING, Way.COPY),
        (STAGING, STORAGE, Way.MAP),
    ],
)
def test_bytes_that_move_go_the_way_that_usage_flags_allow(
    source: MemoryInfo, destination: MemoryInfo, way: Way
) -> None:
    assert way_between(source, destination) is way


def test_one_devices_storage_is_one_memory() -> None:
    assert compatible(STORAGE, STORAGE, None)
    assert compatible(STORAGE, replace(STORAGE, alignment=256))


@pytest.mark.parametrize("capabilities", [PROBED, MAPPABLE])
def test_two_physical_devices_share_nothing(capabilities: Capabilities) -> None:
    assert not compatible(STORAGE, replace(STORAGE, device_id=1), capabilities)
    assert not compatible(STAGING, replace(STORAGE, device_id=1), capabilities)
    assert not compatible(STAGING, replace(STAGING, device_id=1), capabilities)
    assert compatible(STAGING, replace(STAGING, alignment=256), capabilities)
    assert why_incompatible(STORAGE, replace(STORAGE, device_id=1)) == (
        "WebGPU_Buffer (default) is memory of webgpu device 0, WebGPU_Buffer (default) of webgpu device 1"
    )


def test_cpu_and_device_memory_are_incompatible() -> None:
    assert not compatible(PYTHON, STORAGE, MAPPABLE)
    assert not compatible(ORT, STORAGE, MAPPABLE)
    assert not compatible(PYTHON_SHARED, STORAGE, MAPPABLE)


@pytest.mark.parametrize("other", [STAGING, STORAGE, PYTHON])
def test_host_accessible_memory_that_failed_its_probe_is_shared_with_nobody(other: MemoryInfo) -> None:
    broken = replace(NO_STAGING, mappable_storage=True)
    assert not compatible(STAGING, other, broken)
    assert why_incompatible(STAGING, other, broken) == (
        "host accessible memory of webgpu device 0 does not work: the pattern came back as zeros"
    )
    assert not compatible(UNIFIED, other, broken)


def test_a_failed_staging_probe_says_nothing_of_other_memory() -> None:
    assert compatible(STORAGE, STORAGE, NO_STAGING)
    assert compatible(PYTHON, PYTHON, NO_STAGING)
