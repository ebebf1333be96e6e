"""Answers requests about memory: stored weights, which are verified while idle, and live memory of the devices."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from .._js import host_calls
from ..memory import ledger
from ..weights.idle import IdleVerification
from ..weights.store import Verification, WeightStore
from .requests import MemoryRequest, ModelsRequest

__all__ = ["idle_verification", "live_memory", "stored_weights"]


def idle_verification(others: Callable[[], Awaitable[object]]) -> IdleVerification:
    """The idle verification of the stored weights, which reports damage to the page."""

    def notify(found: Verification) -> None:
        damage = {"sources": list(found.sources), "shards": found.shards, "damaged": list(found.damaged)}
        host_calls.emit({"kind": "damaged", **damage})

    return IdleVerification(WeightStore(), notify, others)


async def stored_weights(request: ModelsRequest) -> dict[str, Any]:
    """The contents of the weight store, after `evict` or `verify`."""
    store = WeightStore()
    freed = 0
    if request["action"] == "evict":
        freed = await store.evict(request["which"])
    elif request["action"] == "verify":
        await store.verify(request["which"])
    return {"store": await store.kind(), "files": [asdict(file) for file in await store.list()], "freed": freed}


async def live_memory(request: MemoryRequest) -> dict[str, Any]:
    """The ledger: live bytes by device, category and owner, largest first."""
    account = ledger()
    return {"bytes": account.bytes(), "entries": [asdict(entry) for entry in account.entries]}
