"""Random weights as MatMulNBits packs them, for the tests of kernels that multiply by them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.browser.kernel_page import packed

__all__ = ["PackedWeights"]


class PackedWeights:
    """Matrices [n, k], one or the two of a gated layer, with zero points or minima if there are any. `half` has scales
    and minima that are exact in float16."""

    def __init__(
        self,
        random: np.random.Generator,
        sizes: tuple[int, int, int],
        block: int,
        bits: int,
        *,
        zeros: bool = False,
        minima: bool = False,
        half: bool = False,
    ) -> None:
        matrices, n, k = sizes
        blocks = -(-k // block)
        self._k, self._block, self._bits = k, block, bits
        self._elements = random.integers(0, 1 << bits, (matrices, n, blocks * block), np.uint8)
        kind = np.float16 if half else np.float32
        scales = random.uniform(0.005, 0.02, (matrices, n, blocks)) * 2.0 ** (4 - bits)
        self._scales = scales.astype(kind).astype(np.float32)
        self._zeros = random.integers(0, 1 << bits, scales.shape, np.uint8) if zeros else None
        least = random.uniform(-0.1, 0.1, (matrices, blocks, n)).astype(kind).astype(np.float32)
        self._minima = least if minima else None

    def buffers(self) -> dict[str, bytes]:
        """The bindings of all matrices."""
        made: dict[str, bytes] = {}
        for matrix, ending in zip(range(len(self._elements)), ("", "_up"), strict=False):
            made[f"weights{ending}"] = self._words(self._elements[matrix])
            made[f"scales{ending}"] = self._scales[matrix].tobytes()
            if self._zeros is not None:
                made[f"zeros{ending}"] = self._words(self._zeros[matrix])
            if self._minima is not None:
                made[f"minima{ending}"] = self._minima[matrix].tobytes()
        return made

    def numbers(self) -> NDArray[np.float64]:
        """The weights, dequantized: [matrices, n, k]."""
        zeros = 1 << (self._bits - 1) if self._zeros is None else np.repeat(self._zeros, self._block, axis=2)
        made = (self._elements.astype(np.float64) - zeros) * np.repeat(self._scales, self._block, axis=2)
        if self._minima is not None:
            made = made + np.repeat(self._minima.swapaxes(1, 2), self._block, axis=2)
        return np.asarray(made[:, :, : self._k])

    def _words(self, numbers: NDArray[np.uint8]) -> bytes:
        """Rows of whole bytes, the buffer of whole words."""
        if self._bits == 4:
            data = packed(np.pad(numbers, ((0, 0), (0, numbers.shape[1] % 2)), constant_values=9))
        else:
            data = numbers.tobytes()
        return data + bytes(-len(data) % 4)
