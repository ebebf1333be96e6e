"""Does the steps of a soak in one browser, and looks at its memory in between."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

from capstan_host.testing.harness import Harness, generate_request
from tests import oracle
from tests.browser.page_scripts import PageScripts
from tests.page_memory import prepare

from .memory import Life, Probe, kinds
from .plans import CHAT_MODEL, Step, chat_of, oracle_actions, script_of

__all__ = ["FIXTURES", "Soak", "SoakError"]

FIXTURES = Path(__file__).parents[1] / "fixtures"
ANSWER_MS = 600_000
"""After which a request that was not answered counts as a hang: a loaded machine takes minutes for a step."""
BOOT_MS = 120_000
REPLY = f"""() => Promise.race([
  window.lastReply.then((reply) => reply, (error) => ({{ code: error.code, message: error.message }})),
  new Promise((resolve) => setTimeout(() => resolve(null), {ANSWER_MS})),
])"""
INSIDE = {"destroy": "destroy", "twice": "destroy", "worker": "worker"}
"""Faults that a script in the page sets off itself."""
OUTSIDE = ("gpu", "reload")
"""Those that come from outside."""
LOADING = 0.25
"""The share of faults that come while a model is loaded, as long as that takes."""
LATE_MS = 300.0
"""Until the page hears of its worker's end."""
ANSWERED = """() => Promise.race([
  window.lastReply.then(() => true, () => true), new Promise((resolve) => setTimeout(resolve, 0, false)),
])"""
KEPT_DEVICES = 1
"""A closed model leaves its device to the next one."""
TRIES = 4
"""How often a conversation is asked for once more, whose model has to be loaded again."""


class SoakError(AssertionError):
    """A failure of a soak."""


class Soak:
    """A browser with the harness page, the undisturbed results so far, and what was counted."""

    def __init__(self, browser: Browser, browser_pid: int, url: str, seed: int, begun: float) -> None:
        self.seed = seed
        self.counts: Counter[str] = Counter()
        self.lives: list[Life] = []
        self._begun, self._pid = begun, browser_pid
        self._restarts = 0
        self._text_events = 0
        """Text events of the conversation's earlier requests."""
        self._calm: dict[tuple[str, int], dict[str, Any]] = {}
        self._open: dict[str, Life] = {}
        context = browser.new_context()
        prepare(context)
        self._page = context.new_page()
        self._page.set_default_navigation_timeout(BOOT_MS)
        self._harness = Harness(self._page, url)
        self._scripts = PageScripts.install(self._harness)
        self._probe = Probe(context, self._page, browser_pid)

    def do(self, step: Step) -> None:
        """One step, undisturbed first if that was not done yet. Raises SoakError."""
        key = step.kind, step.variant
        if key not in self._calm:
            self._calm[key] = self._calm_run(*key)
            self._require_worker()
        calm = self._calm[key]
        self._harness.errors.clear()
        if step.kind == "script":
            self._script(step, calm)
        else:
            self._chat(step, calm)
        self._require_worker()
        self.counts[f"{step.kind}s"] += 1
        self.counts[f"fault: {step.fault}"] += 1

    def _require_worker(self) -> None:
        """Raise SoakError if the worker was replaced without a fault of this soak."""
        if self._page.evaluate("() => window.capstan.restarts()") != self._restarts:
            raise SoakError("a worker was replaced that nothing of this step had ended")

    def look(self) -> None:
        """Nothing is open: the ledger is empty; what there is of memory is noted. Raises SoakError."""
        self._forget_model()
        left = self._scripts.run("soaking", "left")
        if left["ledger"] or left["buffers"] or left["devices"] > KEPT_DEVICES:
            raise SoakError(f"something stays once nothing is open: {left}")
        # The probe sees the losses that the soak made.
        errors = [text for text in left["faults"] if not text.startswith("lost: ")]
        if errors:
            raise SoakError(f"WebGPU reported {errors}")
        seconds = time.monotonic() - self._begun
        for what, amount in {**self._probe.sample(), Life.COUNT: left["objects"]}.items():
            self._life(what).samples.append((seconds, amount))

    def _life(self, what: str) -> Life:
        """The series of what lives now: another one begins where a process was replaced."""
        found = kinds(self._pid)
        replaced = self.counts["workers replaced"] + self.counts["pages reloaded"]
        who = found["GPU process"][0] if what == "GPU process" and found["GPU process"] else 0
        if what not in ("GPU process", "renderer", "browser"):
            who = replaced
        life = self._open.get(what)
        if life is None or life.who != who:
            life = self._open[what] = Life(what, who, [])
            self.lives.append(life)
        return life

    def _calm_run(self, kind: str, variant: int) -> dict[str, Any]:
        """The results of an undisturbed run, compared with the oracle."""
        if kind == "chat":
            return self._converse(chat_of(self.seed, variant))
        plan = script_of(self.seed, variant)
        found = self._run_script(plan, [])
        found["tokens"] = self._told()
        if found["reloads"] or found["recoveries"]:
            raise SoakError(f"an undisturbed run lost its device: {found}")
        generators = [generator for group in plan["groups"] for generator in group]
        for generator, result in zip(generators, found["generators"], strict=True):
            if generator["search"]["do_sample"]:
                continue
            actions = oracle_actions(generator["actions"], result["lengths"])
            wanted = oracle.drive(FIXTURES / plan["model"], actions).sequence
            if result["sequence"] != wanted:
                raise SoakError(f"{plan['model']}, {actions}: {result['sequence']} is not the oracle's {wanted}")
            self.counts["sequences equal to the oracle's"] += 1
        return found

    def _run_script(self, plan: dict[str, Any], faults: list[list[Any]]) -> dict[str, Any]:
        self._begin_script(plan, faults)
        return self._end_script()

    def _begin_script(self, plan: dict[str, Any], faults: list[list[Any]]) -> None:
        self._scripts.begin("soaking", "script", plan["model"], plan=plan, faults=faults)

    def _end_script(self) -> dict[str, Any]:
        reply = self._answer()
        if not reply.get("ok"):
            raise SoakError(f"the script's request failed: {reply}")
        lines = self._harness.text("stdout").splitlines()
        if reply["result"]["status"] or not lines or not lines[-1].startswith("result:"):
            raise SoakError(self._harness.text("stderr"))
        found: dict[str, Any] = json.loads(lines[-1].removeprefix("result:"))
        return found

    def _answer(self) -> dict[str, Any]:
        """The reply to the pending request, or its error."""
        reply: dict[str, Any] | None = self._page.evaluate(REPLY)
        if reply is None:
            raise SoakError(f"no reply within {ANSWER_MS / 1000:.0f} s")
        return reply

    def _script(self, step: Step, calm: dict[str, Any]) -> None:
        plan = script_of(self.seed, step.variant)
        points = self._points(step, calm)
        inside = INSIDE.get(step.fault)
        self._text_events = 0
        self._begin_script(plan, [[inside, *point] for point in points] if inside else [])
        if step.fault in OUTSIDE:
            self._meet(step.fault, points[0])
        if step.fault == "reload" or (step.fault == "worker" and self._worker_lost()):
            self._begin_script(plan, [])
        found = self._end_script()
        if step.fault == "nothing":
            # Later loads reuse the findings of earlier ones, and are faster.
            calm["loaded"] = min(calm["loaded"], found["loaded"])
        self.counts["recoveries"] += found["recoveries"]
        self.counts["loads after a loss"] += found["reloads"]
        for number, (result, wanted) in enumerate(zip(found["generators"], calm["generators"], strict=True)):
            if result["sequence"] != wanted["sequence"]:
                raise SoakError(
                    f"generator {number} of {plan} gave {result['sequence']}, undisturbed {wanted['sequence']}"
                )
            self.counts["sequences equal to undisturbed ones"] += 1

    def _points(self, step: Step, calm: dict[str, Any]) -> list[tuple[str, int]]:
        """When its faults come: within the first LOADING of the time by the clock, then by the tokens."""
        points = []
        for share in step.at:
            if share < LOADING:
                points.append(("ms", int(share / LOADING * calm["loaded"])))
            else:
                points.append(("tokens", 1 + int((share - LOADING) / (1 - LOADING) * (calm["tokens"] - 1))))
        return points

    def _meet(self, fault: str, point: tuple[str, int]) -> None:
        """Do what goes wrong from outside at that point of what was begun, or at its end if that is earlier."""
        unit, count = point
        if unit == "ms":
            self._page.wait_for_timeout(count)
        while unit == "tokens" and self._text_events + self._told() < count and not self._page.evaluate(ANSWERED):
            self._page.wait_for_timeout(5)
        if fault == "gpu":
            for pid in kinds(self._pid)["GPU process"]:
                os.kill(pid, signal.SIGKILL)
            self.counts["GPU processes killed"] += 1
        else:
            self._page.reload()
            self._harness.evaluate("() => window.capstan.ready")
            self._replaced("pages reloaded")

    def _told(self) -> int:
        """Tokens of the request that was begun last."""
        return sum(event["kind"] == "text" for event in self._harness.events)

    def _replaced(self, what: str) -> None:
        """There is another worker, to be watched as the one before."""
        self.counts[what] += 1
        self._restarts = self._page.evaluate("() => window.capstan.restarts()")
        self._scripts = PageScripts.install(self._harness)

    def _worker_lost(self) -> bool:
        """Whether the script's worker ended in the middle of it, and not after."""
        reply = self._answer()
        lost = reply.get("code") is not None
        if lost and (reply["code"] != "WorkerLostError" or "another one is started, ask again" not in reply["message"]):
            raise SoakError(f"a worker that ended gave {reply}")
        if lost:
            self._replaced("workers replaced")
        return lost

    def _chat(self, step: Step, calm: dict[str, Any]) -> None:
        """A conversation, and what goes wrong in its course."""
        talk = chat_of(self.seed, step.variant)
        points = self._points(step, calm)
        if step.fault in INSIDE:
            faults = [[INSIDE[step.fault], *point] for point in points]
            self._scripts.run("soaking", "begin_faults", faults=faults)
        waiting = step.fault in OUTSIDE

        def begun() -> bool:
            """A request was sent. Whether its answer was lost with the page."""
            nonlocal waiting
            unit, count = points[0] if points else ("ms", 0)
            if not waiting or (unit == "tokens" and count > self._text_events + talk["new"]):
                return False
            waiting = False
            self._meet(step.fault, points[0])
            return step.fault == "reload"

        found = self._converse(talk, begun)
        if step.fault in INSIDE:
            # A worker that ends now is not noticed at once.
            self._page.wait_for_timeout(LATE_MS)
            if self._page.evaluate("() => window.capstan.restarts()") > self._restarts:
                self._replaced("workers replaced")
            else:
                self._scripts.run("soaking", "end_faults")
        same = found["same"]
        if found["answers"][:same] != calm["answers"][:same]:
            raise SoakError(f"conversation {talk} gave {found['answers']}, undisturbed {calm['answers']}")
        self.counts["answers equal to undisturbed ones"] += same

    def _converse(self, talk: dict[str, Any], begun: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """The token ids of each answer, asked for by requests to the page, and how many are the `same` each time: a
        worker that ended took the ids of earlier answers along, whose text may be split into others."""
        started, self._text_events = time.monotonic(), 0
        loaded: float | None = None
        messages: list[dict[str, str]] = []
        answers: list[list[int]] = []
        same = len(talk["turns"])
        workers = self._workers()
        for number, text in enumerate(talk["turns"]):
            messages.append({"role": "user", "content": text})
            if number == talk["cancelled"]:
                self._begin_chat(messages, talk["new"])
                self._page.wait_for_timeout(talk["after"])
                self._page.evaluate("() => window.capstan.request({ kind: 'cancel' })")
                self._answer()
                self._text_events += self._told()
                self.counts["answers cancelled"] += 1
            result = self._answered(messages, talk["new"], begun)
            loaded = loaded or 1000 * (time.monotonic() - started)
            if self._workers() != workers and number < same:
                same = number or same
            workers = self._workers()
            answers.append(result["token_ids"])
            messages.append({"role": "assistant", "content": result["text"]})
        return {"answers": answers, "same": same, "tokens": sum(map(len, answers)), "loaded": loaded}

    def _workers(self) -> tuple[int, int]:
        """Changes when the page has another worker."""
        return self._page.evaluate("() => window.capstan.restarts()"), self.counts["pages reloaded"]

    def _begin_chat(self, messages: list[dict[str, str]], new: int) -> None:
        options = generate_request(CHAT_MODEL)
        fields = ("model", "dtype", "device", "capture", "run_ahead", "search")
        request = {name: options[name] for name in fields} | {"kind": "chat", "messages": messages}
        self._harness.begin({**request, "max_length": None, "max_new_tokens": new})

    def _answered(self, messages: list[dict[str, str]], new: int, begun: Callable[[], bool]) -> dict[str, Any]:
        """An answer; asked for again where the error says so."""
        reply: dict[str, Any] = {}
        for _ in range(TRIES):
            self._begin_chat(messages, new)
            if begun():
                continue
            reply = self._answer()
            self._text_events += self._told()
            self.counts["recoveries"] += sum(event["kind"] == "recovered" for event in self._harness.events)
            if reply.get("ok"):
                result: dict[str, Any] = reply["result"]
                return result
            kind = reply.get("code") or reply["error"]["type"]
            if kind not in ("DeviceLostError", "WorkerLostError"):
                break
            self.counts["answers asked for again"] += 1
        raise SoakError(f"a conversation was not answered: {reply}")

    def _forget_model(self) -> None:
        """Have the worker close the model of the last conversation: it does before it loads another one."""
        reply = self._harness.reply(generate_request("not-there", prompt_ids=[5]))
        if reply["ok"] or reply["error"]["type"] not in ("ModelFileError", "ConfigError"):
            raise SoakError(f"a model that is not there gave {reply}")
