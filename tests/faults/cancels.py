"""Attacks on one worker: requests that are cancelled, and scripts whose load or run is cancelled, or whose model is
closed, at any moment. The next answer of the same worker is right."""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from capstan_host.testing.harness import generate_request
from tests.browser.page_scripts import PageScripts

from .deadline import PAGE_SECONDS, kept_until_end
from .report import Outcome
from .share import Share
from .visits import LIMIT_SECONDS, PROMPT, TOKENS, wanted

if TYPE_CHECKING:
    from .page import OpenedPage

__all__ = ["attack_cancelled_requests", "attack_cancelled_scripts", "shared_fields"]

SHARED = ("model", "dtype", "device", "capture", "run_ahead", "search")

ASK = """async ([first, next, ms, cancels, behind, limit]) => {
  const told = ({ code, message }) => ({ ok: false, error: { type: code, message } });
  const ask = (request) => window.capstan.request(request).catch(told);
  const answered = async () => {
    const begun = performance.now();
    const asked = ask(first);
    const queued = behind ? ask(next) : null;
    if (cancels) await new Promise((resolve) => setTimeout(resolve, ms));
    let ended = false;
    void asked.then(() => (ended = true));
    let late = 0;
    for (let left = cancels; left > 0; left--) {
      const cancelled = ask({ kind: "cancel" });
      // A reply that is there already is heard of before the next turn of the page's loop.
      await new Promise((resolve) => setTimeout(resolve));
      late += ended;
      await cancelled;
    }
    const replies = [await asked];
    const took = performance.now() - begun;
    replies.push(await (queued ?? ask(next)), await ask(next));
    return { replies, late, took, restarts: await window.capstan.restarts() };
  };
  return Promise.race([answered(), new Promise((resolve) => setTimeout(() => resolve(null), limit))]);
}"""
STOPPED = ("KeyboardInterrupt", "stopped by the user")


def shared_fields(request: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request that requests of other kinds have, too."""
    return {name: value for name, value in request.items() if name in SHARED}


def attack_cancelled_requests(share: Share, page: OpenedPage) -> Outcome:
    """Requests of the protocol that load a model or find it loaded, and are cancelled."""
    outcome = Outcome("cancelled requests")
    names = [page.folders.changed({}) for _ in range(2)]
    calm: dict[tuple[str, str, bool], float] = {}
    restarts = page.harness.evaluate("() => window.capstan.restarts()")

    def ask(case: dict[str, Any]) -> dict[str, Any] | None:
        if not case["loaded"]:
            names.reverse()
        good = generate_request(names[0], prompt_ids=PROMPT, max_new_tokens=TOKENS, device=case["device"])
        load = {"kind": "load", **shared_fields(good), "max_length": None, "max_new_tokens": None}
        first = load if case["kind"] == "load" else good
        ms = case["at"] * calm.get(key, 0)
        given = [first, good, ms, case["cancels"], case["behind"], 3000 * LIMIT_SECONDS]
        with kept_until_end(json.dumps(case).encode(), PAGE_SECONDS):
            found: dict[str, Any] | None = page.harness.evaluate(ASK, given)
        if found is None:
            page.restart()
        return found

    for case in share.cases(outcome.kind, cancelled_request):
        key = case["kind"], case["device"], case["loaded"]
        told = json.dumps(case).encode()
        if key not in calm:
            for _ in range(2):
                found = ask({**case, "cancels": 0})
                if why := fault_of_replies(found, 0, restarts):
                    outcome.fail(told, f"undisturbed: {why}")
            calm[key] = found["took"] if found else 0.0
        found = ask(case)
        if why := fault_of_replies(found, case["cancels"], restarts):
            outcome.fail(told, f"{case}: {why}")
            restarts = found["restarts"] if found else 0
        elif found and found["replies"][0]["ok"]:
            outcome.taken += 1
        else:
            outcome.refused += 1
    return outcome


def cancelled_request(random: Random) -> dict[str, Any]:
    """A request, whether its model is loaded already, when and how often it is cancelled, and whether the next request
    waits behind it."""
    return {
        "kind": random.choice(("load", "generate", "generate")),
        "device": random.choice(("wasm", "wasm", "wasm", "webgpu")),
        "loaded": random.random() < 0.3,
        "at": random.random(),
        "cancels": random.choice((1, 1, 2)),
        "behind": random.random() < 0.3,
    }


def fault_of_replies(found: dict[str, Any] | None, cancels: int, restarts: int) -> str | None:
    """The reason why these are not the replies of one worker to a cancelled request, the next and the last, or None."""
    if found is None:
        return f"no answer within {3 * LIMIT_SECONDS} s"
    if found["restarts"] != restarts:
        return f"the worker was replaced: {found}"
    # A cancel behind the first reply means the request after it.
    stopped = (cancels, found["late"], 0)
    for number, reply in enumerate(found["replies"]):
        if not reply["ok"]:
            if not stopped[number] or (reply["error"]["type"], reply["error"]["message"]) != STOPPED:
                return f"reply {number} is {reply['error']['type']}: {reply['error']['message'][:300]}"
        elif reply["result"].get("token_ids", wanted()) != wanted():
            return f"reply {number} has wrong ids {reply['result']['token_ids']}"
    return None


def attack_cancelled_scripts(share: Share, corpus: list[bytes], page: OpenedPage) -> Outcome:
    """Scripts whose loads and runs are disturbed at one of their suspensions."""
    outcome = Outcome("cancelled scripts")
    page.harness.errors.clear()
    restarts = page.harness.evaluate("() => window.capstan.restarts()")
    scripts, model = PageScripts.install(page.harness), page.folders.changed({})
    for case in [*map(json.loads, corpus), *share.cases(outcome.kind, disturbed_script)]:
        told = json.dumps(case).encode()
        try:
            found = disturbed(page, scripts, model, case)
        except AssertionError as error:
            outcome.fail(told, f"{case}: {error}")
            continue
        if found is None:
            outcome.fail(told, f"{case}: no end within {3 * LIMIT_SECONDS} s")
            page.restart()
            scripts, restarts = PageScripts.install(page.harness), 0
            continue
        why = fault_of_script(case["act"], found)
        if page.harness.evaluate("() => window.capstan.restarts()") != restarts:
            why = f"the worker was replaced: {found}"
        if why:
            outcome.fail(told, f"{case}: {why}")
        elif "ids" in found["first"]:
            outcome.taken += 1
        else:
            outcome.refused += 1
    for fault in scripts.faults():
        outcome.fail(b"", f"in the page: {fault}")
    return outcome


def disturbed(page: OpenedPage, scripts: PageScripts, model: str, case: dict[str, Any]) -> dict[str, Any] | None:
    """The ends of disturbed works; None if they have none."""
    with kept_until_end(json.dumps(case).encode(), PAGE_SECONDS):
        scripts.begin("cancelling", "disturbed", model, prompt=PROMPT, count=TOKENS, **case)
        found: dict[str, Any] | None = scripts.end() if page.ended(3000 * LIMIT_SECONDS) else None
    return found


def disturbed_script(random: Random) -> dict[str, Any]:
    """An act, the share of the suspensions before it, and how much later it comes."""
    return {
        "act": random.choice(("cancel", "cancel", "cancel one", "close", "close other")),
        "device": random.choice(("wasm", "wasm", "wasm", "webgpu")),
        "at": random.random(),
        "ms": random.choice((0, 0, 1, 5, 20, 100)),
        "stored": random.random() < 0.5,
    }


def fault_of_script(act: str, found: dict[str, Any]) -> str | None:
    """The reason why the ends of disturbed works are wrong, or None."""
    allowed = {"close other": (), "close": ("ClosedError", "CancelledError")}.get(act, ("CancelledError",))
    for name, errors in (("first", allowed), ("second", ()), ("last", ())):
        end = found[name]
        if end and end.get("ids", wanted()) != wanted():
            return f"the {name} has wrong ids {end['ids']}"
        if end and "error" in end and end["error"] not in errors:
            return f"the {name} ends in {end['error']}: {end['message'][:300]}"
    left = found["left"], found["left at last"]
    return f"{left} bytes of devices are left" if any(left) else None
