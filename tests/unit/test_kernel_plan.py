"""Kernels are cut for the workgroup limits that the GPU adapter reports."""

from __future__ import annotations

from capstan.tape.kernel_plan import MatrixSize, WorkgroupLimits


def test_limits_are_those_of_the_adapter() -> None:
    sizes = {"subgroup_size": 32, "max_workgroup_threads": 1024, "max_workgroup_bytes": 32768, "max_storage_buffers": 9}
    limits = WorkgroupLimits.of({**sizes, "software": True, "subgroup_matrices": [[16, 8, 4]]})
    assert (limits.lanes, limits.threads, limits.memory, limits.software) == (32, 1024, 32768, True)
    assert (limits.buffers, limits.matrices) == (9, (MatrixSize(m=16, n=8, k=4),))


def test_without_an_adapter_they_are_what_webgpu_promises() -> None:
    limits = WorkgroupLimits()
    assert (limits.lanes, limits.threads, limits.memory, limits.software) == (0, 256, 16384, False)
    assert (limits.buffers, limits.matrices) == (8, ())
