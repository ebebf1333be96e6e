"""Keeps the ledger: the live bytes of every device by category and owner, at any time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

__all__ = ["CATEGORIES", "Ledger", "LedgerEntry", "keep_account", "ledger"]

CATEGORIES = {
    "weights": "model weights, shared by all sessions of the page",
    "persistent": "KV caches, sampler state, token rings",
    "io": "ids, masks, positions, logits",
    "scratch": "buffers that onnxruntime-web allocates for its sessions, and the scratch of tapes",
    "staging": "mappable buffers that readbacks go through",
    "kernels": "parameters of Capstan's own kernels, and buffers of checks",
    "user": "buffers that the program allocated itself",
}


@dataclass(frozen=True)
class LedgerEntry:
    """Live memory of one device, category and owner."""

    device: str
    category: str
    owner: str
    bytes: int
    buffers: int


@dataclass(frozen=True)
class Ledger:
    """Live memory at one moment, largest entries first; `str(ledger)` is a table."""

    entries: tuple[LedgerEntry, ...]

    def bytes(self, *, device: str | None = None, category: str | None = None, owner: str | None = None) -> int:
        """The number of live bytes, of one device, category or owner if it is given."""
        return sum(entry.bytes for entry in self.of(device, category, owner))

    def buffers(self, *, device: str | None = None, category: str | None = None, owner: str | None = None) -> int:
        """The number of live buffers, of one device, category or owner if it is given."""
        return sum(entry.buffers for entry in self.of(device, category, owner))

    def of(self, device: str | None, category: str | None, owner: str | None) -> list[LedgerEntry]:
        """The entries of one device, category or owner; None takes all."""
        wanted = {"device": device, "category": category, "owner": owner}
        return [
            entry
            for entry in self.entries
            if all(value is None or getattr(entry, name) == value for name, value in wanted.items())
        ]

    def __str__(self) -> str:
        rows = [f"{e.bytes:>14,} bytes {e.buffers:>5}  {e.device} {e.category:<10} {e.owner}" for e in self.entries]
        return "\n".join([*rows, f"{self.bytes():>14,} bytes {self.buffers():>5}  in all"])


Account = Callable[[], Iterable[LedgerEntry]]

accounts: dict[int, Account] = {}


def keep_account(account: Account) -> Callable[[], None]:
    """Include the entries of `account` in every `ledger()`. Calling the returned function ends that."""
    key = max(accounts, default=0) + 1
    accounts[key] = account
    return lambda: accounts.pop(key, None) and None


def ledger() -> Ledger:
    """All live allocations, on every device of this interpreter."""
    found = [entry for account in list(accounts.values()) for entry in account()]
    return Ledger(tuple(sorted(found, key=lambda entry: (-entry.bytes, entry.device, entry.category, entry.owner))))
