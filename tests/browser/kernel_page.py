"""Fused kernels run on buffers of their own by kernel_page.ts, and what the tests of such kernels share."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from playwright.sync_api import Browser, Page

from tests.browser.bundled_page import page_with

__all__ = ["BOUND", "EPSILON", "KernelPage", "dispatch", "guarded", "packed", "results"]

ROOT = Path(__file__).parents[2]
BOUND = 2.0**-20
"""The bound of an error relative to the sum of the absolute products of an element: 8 roundings of 2^-23."""
EPSILON = 0.1
"""The epsilon of the norms."""
GUARD = 64
"""Elements after the results that must keep what they hold."""
UNTOUCHED = 77


class KernelPage:
    """The page with the bundled test script."""

    def __init__(self, page: Page) -> None:
        self.page = page
        offers = page.evaluate("() => adapterOffers()")
        self.half: bool = offers["half"]
        self.lanes: int = offers["lanes"]

    @classmethod
    @contextmanager
    def opened(cls, browser: Browser, url: str, folder: Path) -> Iterator[KernelPage]:
        """The script is bundled into `folder`; an error in the page fails the test."""
        with page_with("kernel_page.ts", browser, url, folder) as page:
            yield cls(page)

    def run(
        self,
        shader: str,
        constants: Mapping[str, int | float | bool],
        buffers: Mapping[str, bytes],
        workgroups: Sequence[int],
        *,
        read: str = "y",
        half: bool = False,
        lanes: int = 0,
        emulated: bool = False,
    ) -> bytes:
        """The buffer of binding `read` after one kernel ran; with `half` that for float16, float32 in place of it.
        Subgroups of another size than the adapter's, and those `emulated`, are made of workgroup memory."""
        one = dispatch(shader, constants, buffers, workgroups, half=half, lanes=lanes)
        [found] = self.run_all(buffers, [one], [read], widened=half, emulated=emulated and lanes > 0)
        return found

    def run_all(
        self,
        buffers: Mapping[str, bytes],
        dispatches: Sequence[Mapping[str, Any]],
        wanted: Sequence[str],
        *,
        widened: bool = False,
        emulated: bool = False,
    ) -> list[bytes]:
        """The wanted buffers after kernels ran; buffers are called as the kernels call what they bind."""
        encoded = {name: base64.b64encode(data + bytes(-len(data) % 4)).decode() for name, data in buffers.items()}
        how = {"widened": widened, "emulated": emulated}
        request = {"buffers": encoded, "dispatches": dispatches, "wanted": wanted, **how}
        found = map(base64.b64decode, self.page.evaluate("run => runKernels(run)", request))
        return [data[: len(buffers[name])] for name, data in zip(wanted, found, strict=True)]


def dispatch(
    shader: str,
    constants: Mapping[str, int | float | bool],
    bindings: Iterable[str],
    workgroups: Sequence[int],
    *,
    half: bool,
    lanes: int,
) -> dict[str, Any]:
    """A kernel and its workgroups, as the page takes them."""
    floats = [name for name, value in constants.items() if isinstance(value, float)]
    kernel = {"shader": shader, "constants": dict(constants), "floats": floats, "half": half, "lanes": lanes}
    return {"kernel": {**kernel, "bindings": dict.fromkeys(bindings)}, "workgroups": list(workgroups)}


def packed(nibbles: NDArray[np.uint8]) -> bytes:
    """Low nibbles first, as MatMulNBits has them."""
    return (nibbles[:, ::2] | nibbles[:, 1::2] << 4).astype(np.uint8).tobytes()


def guarded(count: int) -> bytes:
    """Room for `count` results of float32, and what must stay untouched after them."""
    return np.full(count + GUARD, UNTOUCHED, np.float32).tobytes()


def results(data: bytes, count: int) -> NDArray[np.float32]:
    """The results in a buffer that `guarded` made; nothing was written past them."""
    found = np.frombuffer(data, np.float32)
    assert (found[count:] == UNTOUCHED).all(), f"written past the {count} results"
    return found[:count]
