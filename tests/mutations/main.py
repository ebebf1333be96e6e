"""Tries each fault and reports those that no test finds: `build.py test --mutations`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from buildtools import BUILD, ROOT
from buildtools.site import assemble
from capstan_host.locks import locked

from .catalogue import MUTATIONS
from .checkout import Checkout
from .mutation import Mutation, MutationError

__all__ = ["chosen", "main", "try_all"]

WRONG = 2
"""The exit status for something to correct."""


def main(arguments: Sequence[str]) -> int:
    """Print each fault with the test that found it; 1 if any survived."""
    parser = argparse.ArgumentParser(prog="build.py test --mutations", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these, by name or pattern such as 'tape.*'")
    parser.add_argument("--list", action="store_true", help="list the faults and try none")
    args = parser.parse_args(arguments)
    try:
        mutations = chosen(args.names, MUTATIONS)
        if args.list:
            for mutation in mutations:
                print(f"{mutation.name:<44} {mutation.file}: {mutation.fault}")
            return 0
        assemble()
        with locked("mutations"):
            return try_all(mutations, ROOT, BUILD / "mutations")
    except MutationError as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG


def chosen(names: Sequence[str], mutations: Sequence[Mutation]) -> list[Mutation]:
    """The mutations with these names, all without any. Raises MutationError for a name of none."""
    for name in names:
        if not any(fnmatchcase(mutation.name, name) for mutation in mutations):
            raise MutationError(f"no mutation is named {name!r}: --list names them")
    return [each for each in mutations if not names or any(fnmatchcase(each.name, name) for name in names)]


def try_all(mutations: Sequence[Mutation], root: Path, copy: Path) -> int:
    """Try these in a copy of the checkout at `root`: their tests first without a fault, then with each; 1 if a fault
    survived. Raises MutationError if a mutation does not fit, or a test fails without a fault."""
    for mutation in mutations:
        mutation.mutated(root)
    checkout = Checkout(root, copy)
    begun = time.monotonic()
    tests = list(dict.fromkeys(test for mutation in mutations for test in mutation.tests))
    without = checkout.run(tests)
    if without.killer:
        raise MutationError(f"{without.killer} fails without a fault: mend it first")
    print(f"{without.seconds:6.1f} s  without a fault all tests pass", flush=True)
    survivors = []
    for mutation in mutations:
        with checkout.with_fault(mutation):
            outcome = checkout.run(mutation.tests)
        if not outcome.killer:
            survivors.append(mutation)
        found = outcome.killer or f"SURVIVED: {mutation.fault}"
        print(f"{outcome.seconds:6.1f} s  {mutation.name:<44} {found}", flush=True)
    minutes = (time.monotonic() - begun) / 60
    print(f"{len(mutations)} faults, {len(mutations) - len(survivors)} found, in {minutes:.1f} minutes")
    for mutation in survivors:
        print(f"no test finds {mutation.name} ({mutation.file}): {mutation.fault}")
    return 1 if survivors else 0
