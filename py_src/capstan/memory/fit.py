"""Computes whether a model and its sequences fit a device, before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ..errors import OptionError, OutOfMemoryError
from .info import Limits
from .pools import MemoryRequirements

__all__ = ["Fit", "fits", "plan"]

LIMITS = {
    "max_binding_size": "bytes in one binding (maxStorageBufferBindingSize in WebGPU)",
    "max_buffer_size": "bytes in one buffer (maxBufferSize in WebGPU)",
    "budget": "bytes in all (the budget that was given, or what the device holds)",
}


MOST_REPORTED = 8 << 30
"""Browsers report at most this size for larger machines; some report more."""
FLOAT_BYTES = 4
DRAFT = "draft model"
SHARE = 2
"""A page that takes more than this fraction (1 / N) of a small machine's memory is at risk."""


@dataclass(frozen=True)
class Fit:
    """Says whether everything fits, as its truth value. If not, it has the limit that is exceeded most, the tensor or
    pool that exceeds it, and a max_length that fits.
    """

    requirements: MemoryRequirements
    limit: str | None = None
    """'max_binding_size', 'max_buffer_size' or 'budget'; None if everything fits."""
    item: str | None = None
    """The tensor that exceeds it, or for a budget the largest pool, of which the draft model is one."""
    value: int = 0
    allowed: int = 0
    largest_max_length: int | None = None
    """The largest max_length that fits, within the range that was searched; 0 if none fits, None if there was no
    search.
    """
    shortest: Fit | None = None
    """The result for a max_length of 1, if no max_length fits."""
    by_cache: Mapping[str, int] = field(default_factory=dict)
    """The largest max_length that fits, by `kv_cache_dtype`, for the types that exceed `largest_max_length`; empty if
    everything fits.
    """
    in_parts: int = 0
    """The largest max_length of a load that requests it and therefore has caches in parts, if that is larger; else
    0.
    """
    machine: int = 0
    """Memory of the machine in bytes, as the browser reports it; 0 if it does not."""

    def __bool__(self) -> bool:
        return self.limit is None

    @property
    def reason(self) -> str:
        """The value, the limit and the remedy in one line; empty if everything fits."""
        if self.limit is None:
            return ""
        need = self.requirements
        return (
            f"{self.item} takes {self.value} bytes with batch_size {need.batch_size} and max_length {need.max_length}; "
            f"{need.device} allows {self.allowed} {LIMITS[self.limit]}; {self._remedy()}"
        )

    @property
    def tight(self) -> str:
        """The reason why the browser may end the page although no limit of the device is exceeded, in one line with the
        remedy. It is empty if there is no such reason.
        """
        need = self.requirements
        if not 0 < self.machine < MOST_REPORTED or SHARE * need.total.bytes <= self.machine:
            return ""
        return (
            f"it takes {need.total.bytes} bytes with max_length {need.max_length}; the browser reports {self.machine} "
            "bytes of memory in this machine and may end a page that takes more than half of it: "
            f"{self._on_disk() or 'use a smaller max_length or a smaller model'}"
        )

    def require(self) -> None:
        """Raise OutOfMemoryError with the reason if something does not fit."""
        if self.limit is not None:
            raise OutOfMemoryError(self.reason)

    def _on_disk(self) -> str:
        """The remedy for a model with tables that could stay on disk; empty for others, and on the CPU, where packed
        weights take less memory, but no tables on disk.
        """
        size = 0 if self.requirements.device == "wasm" else self.requirements.looked_up
        tables = f"which leaves its embedding tables of {size} bytes on disk"
        return f"load the model with embedding_tables='disk', {tables}, or use a smaller model" if size else ""

    def _remedy(self) -> str:
        smaller = " or ".join(f"{dtype!r} (at most {length})" for dtype, length in self.by_cache.items())
        if self.largest_max_length:
            ways = [f"use a max_length of at most {self.largest_max_length}"]
            if self.in_parts:
                ways.append(f"load the model for that length (its max_length, at most {self.in_parts})")
            if smaller:
                ways.append(f"load the model with kv_cache_dtype={smaller}")
            return ", or ".join(ways)
        need = self.requirements
        breaking = self if self.shortest is None else self.shortest
        if (breaking.item or "").startswith(DRAFT):
            return "use a smaller draft model, or none"
        weights = {item.name for item in breaking.requirements.pool("weights")} | {"weights"}
        if breaking.item in weights:
            whole = {each.name: each.why for each in breaking.requirements.split if each.why}
            why = f"{whole[breaking.item]}; " if breaking.item in whole else ""
            if on_disk := self._on_disk():
                return on_disk
            if need.device == "wasm":
                others = breaking.value - breaking.requirements.weights.bytes
                millions = max(0, breaking.allowed - others) // FLOAT_BYTES // 10**6
                return (
                    f"the CPU holds weights in float32, so that a model of at most {millions} million parameters "
                    "fits: use a smaller model, or WebGPU, which holds weights as they are in the file"
                )
            return f"{why}use a smaller model, or one with fewer bits a weight"
        if smaller:
            return f"load the model with kv_cache_dtype={smaller} and that max_length"
        if self.largest_max_length is None and breaking.requirements.max_length > 1:
            return "use a smaller max_length"
        if breaking.requirements.batch_size > 1:
            return "use a smaller batch_size"
        return "use a smaller model"


def fits(requirements: MemoryRequirements, limits: Limits, *, budget: int | None = None) -> Fit:
    """Compare every tensor with the device's limits, and the total with `budget` bytes if one is given.

    A binding holds one whole tensor, so each tensor must stay within max_binding_size and max_buffer_size. WebGPU does
    not report the size of the memory: within the limits an allocation can still fail, as OutOfMemoryError.
    """
    broken = list(_broken(requirements, limits, budget))
    if not broken:
        return Fit(requirements)
    return max(broken, key=lambda fit: fit.value / max(fit.allowed, 1))


def plan(
    requirements_of: Callable[[int], MemoryRequirements],
    max_length: int,
    limits: Limits,
    *,
    at_most: int | None = None,
    budget: int | None = None,
) -> Fit:
    """Whether `requirements_of(max_length)` fits, and the largest max_length up to `at_most` that fits.

    `at_most` is usually the model's context length; the default is `max_length`. `requirements_of` must not shrink as
    max_length grows. Raises OptionError for a max_length below 1.
    """
    if max_length < 1:
        raise OptionError(f"max_length is {max_length}; it must be at least 1")
    asked = fits(requirements_of(max_length), limits, budget=budget)
    good, bad = (max_length, max(max_length, at_most or 0) + 1) if asked else (0, max_length)
    while bad - good > 1:
        middle = (good + bad) // 2
        if fits(requirements_of(middle), limits, budget=budget):
            good = middle
        else:
            bad = middle
    shortest = None if good else fits(requirements_of(1), limits, budget=budget)
    return Fit(asked.requirements, asked.limit, asked.item, asked.value, asked.allowed, good, shortest)


def _broken(need: MemoryRequirements, limits: Limits, budget: int | None) -> Iterator[Fit]:
    draft = () if need.draft is None else need.draft.items
    for item in (*need.items, *(replace(item, name=f"{DRAFT} {item.name}") for item in draft)):
        for limit in ("max_binding_size", "max_buffer_size"):
            allowed: int = getattr(limits, limit)
            if item.bytes > allowed:
                yield Fit(need, limit, item.name, item.bytes, allowed)
    if budget is not None and need.total.bytes > budget:
        pools = {name: getattr(need, name).bytes for name in ("weights", "scratch", "persistent", "io")}
        pools |= {} if need.draft is None else {DRAFT: need.draft.total.bytes}
        largest = max(pools, key=pools.__getitem__)
        yield Fit(need, "budget", largest, need.total.bytes, budget)
