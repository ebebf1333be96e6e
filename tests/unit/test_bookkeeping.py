"""The ledger lists the entries of all accounts that are open, whichever ended before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from capstan.memory import LedgerEntry, ledger
from capstan.memory.bookkeeping import accounts, keep_account


@pytest.fixture(autouse=True)
def no_other_accounts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = dict(accounts)
    accounts.clear()
    yield
    accounts.clear()
    accounts.update(before)


def entry(owner: str, size: int, category: str = "io") -> LedgerEntry:
    return LedgerEntry("webgpu", category, owner, size, 1)


def test_an_account_is_listed_until_it_ends_and_takes_no_other_ones_place() -> None:
    end_first = keep_account(lambda: [entry("first", 10)])
    keep_account(lambda: [entry("second", 20)])
    end_first()
    keep_account(lambda: [entry("third", 30, "weights")])
    found = ledger()
    assert [each.owner for each in found.entries] == ["third", "second"]
    assert (found.bytes(), found.buffers()) == (50, 2)
    assert (found.bytes(category="io"), found.bytes(owner="third"), found.bytes(device="wasm")) == (20, 30, 0)
    end_first()
    assert ledger() == found
