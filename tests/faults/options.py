"""Attacks on the JavaScript API (options_page.mjs): arguments of every type, getters that throw, prototypes, cycles.
Each call ends in a result or an OptionError, no value is ignored, and every request that was sent is checked like in a
worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from capstan.errors import CapstanError
from capstan.page.read_request import read_request
from capstan.stages.search import SearchOptions
from capstan.text.messages import read_messages, read_tools
from tests.node import started

from .deadline import deadline
from .report import Outcome, fault_of
from .share import Share

__all__ = ["attack_agents", "attack_options"]

HERE = Path(__file__).parent


def attack_options(share: Share) -> Outcome:
    """So many calls; the case of a failure names the call and what was replaced in its arguments."""
    return attack_in_node("API values", HERE / "options_page.mjs", share)


def attack_agents(share: Share) -> Outcome:
    """So many runs of agents (agents_page.mjs)."""
    return attack_in_node("agents", HERE / "agents_page.mjs", share)


def attack_in_node(kind: str, page: Path, share: Share) -> Outcome:
    outcome, first = Outcome(kind), 0
    while first < share.count:
        first = attack_from(first, page, share, outcome)
    return outcome


def attack_from(first: int, page: Path, share: Share, outcome: Outcome) -> int:
    """Try the calls from this number on, in a Node of their own: the number after the last one."""
    numbers = (share.seed, share.count, share.part, share.parts, first)
    client = "--alias:capstan-webgpu=./web/src/page/capstan.ts"
    process = started(page, client, arguments=[str(number) for number in numbers])
    assert process.stdout
    case, number = b"", first - 1
    while True:
        text, failed = "", len(outcome.failures)
        with deadline(outcome, case):
            text = process.stdout.readline()
        if not text:
            break
        line = json.loads(text)
        if "outcome" in line:
            count_call(outcome, line)
        else:
            case, number = text.encode(), line["number"]
    late = len(outcome.failures) > failed
    if late:
        process.kill()
    status = process.wait()
    if (status or number < first) and not late:
        outcome.fail(case, f"Node ended with {status}")
    return number + 1 if status and number >= first else share.count


def count_call(outcome: Outcome, line: dict[str, Any]) -> None:
    """Count the end of a call."""
    why = line["outcome"] if line["outcome"] not in ("taken", "refused") else fault_of_requests(line["requests"])
    if why is not None:
        outcome.fail(json.dumps(line).encode(), f"{line['call']}: {why}")
    elif line["outcome"] == "taken":
        outcome.taken += 1
    else:
        outcome.refused += 1


def fault_of_requests(requests: list[str]) -> str | None:
    """Why a sent request is answered with something else than an error of ours; None if it is not."""
    for request in requests:
        try:
            use(read_request(request))
        except CapstanError as error:
            if (why := fault_of(str(error))) is not None:
                return why
        except Exception as error:
            return f"{type(error).__name__}: {error} for {request[:200]}"
    return None


def use(request: Any) -> None:
    """Read the parts of a request that are read once its model is loaded."""
    SearchOptions().replace(**request.get("search", {}))
    if (messages := request.get("messages")) is not None:
        read_messages("messages", messages)
    if (tools := request.get("tools")) is not None:
        read_tools("tools", tools)
