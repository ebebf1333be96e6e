"""Runs the bench and writes what it found: the command of a GPU host, and what `build.py bench` calls."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from capstan_host.command_errors import CommandError

from .arguments import add_run_arguments, check_run_arguments, named
from .plan import SECTIONS, Step, extent, plan
from .report import page
from .results import disagreements, failures, over_budget, summarize
from .run import play, probe_adapter
from .server import BenchServer
from .subjects import Subject
from .text import table
from .truth import against_float32, transcripts

__all__ = ["Bench", "main"]

PACK = Path(__file__).resolve().parents[2]
"""The unpacked pack, of which this file is benches/runner/main.py; on a checkout, its root."""
CHANGED = ("rounds", "tokens", "lengths", "starts", "limit")
"""Options that change the extent."""
PACKAGED = ("transformers_js", "wllama")
"""Contenders that come in a package of their own."""
FAULTS = ("disagreements", "failures", "over budget", "requests to other hosts")


class Bench:
    """One run: where things are, what is measured, where results go. The JSON is written again after every model."""

    def __init__(
        self,
        *,
        site: Path,
        page: Path,
        packages: dict[str, Path],
        models: dict[str, Path],
        browser: Path,
        flags: Sequence[str],
        about: dict[str, Any],
        cases: Sequence[Step] = (),
    ) -> None:
        self.where = (site, page, packages)
        self.models = models
        self.browser = browser
        self.flags = flags
        self.about = about
        self.cases = cases

    def run(self, args: argparse.Namespace) -> int:
        """Play it all; 0 if every step ran, the ids agree and nothing was asked of another host."""
        if "cases" in (args.sections or ()) and not self.cases:
            raise CommandError("the section cases needs the replies that a pack carries: --pack DIR writes one")
        started = time.monotonic()
        adapter = probe_adapter(self.server, self.browser, self.flags)
        measured = extent(adapter["software"], named=bool(args.sections))
        changes = {name: getattr(args, name) for name in CHANGED if getattr(args, name) is not None}
        drawn = measured.drawn
        if args.bounds is not None:
            drawn = replace(drawn, bounds=tuple(args.bounds))
        if args.lengths is not None:
            drawn = replace(drawn, cache_lengths=args.lengths)
        changes["drawn"] = drawn
        measured = replace(measured, **changes)
        asked = args.sections or default_sections(adapter["software"])
        absent = [name for name in PACKAGED if name not in self.where[2]]
        without = [*(args.without or ()), *absent]
        steps = plan(self.models, asked, measured, self.about.get("passes", []), self.cases, without)
        if all(step["action"] == "end" for step in steps):
            raise CommandError("nothing is left to measure: ask for other sections, contenders or lengths")
        report: dict[str, Any] = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "command": " ".join(sys.argv),
            "adapter": adapter,
            "gpu": gpu(),
            "browser": version(self.browser),
            **{name: value for name, value in self.about.items() if name not in ("passes", "flags")},
            "measured": asdict(measured),
        }
        outcomes: list[dict[str, Any]] = []
        subjects = {name: Subject.of(name, folder) for name, folder in self.models.items()}

        counted: dict[tuple[str, int], int] = {}

        def as_counted(step: Step, outcome: dict[str, Any]) -> Step:
            """A prompt of words has as many tokens as the first contender counts."""
            seen = (outcome.get("data") or {}).get("prompt_tokens")
            if not subjects[step["model"]].file or seen is None:
                return step
            return {**step, "length": counted.setdefault((step["model"], step["length"]), seen)}

        def keep(step: Step, outcome: dict[str, Any]) -> None:
            told = {name: value for name, value in step.items() if name not in ("args", "request", "expected")}
            told["asked"] = {
                name: value for name, value in step.get("args", {}).items() if name not in ("prompt", "text")
            }
            outcomes.append(checked({**told, **outcome}, as_counted(step, outcome)))
            shown = outcomes[-1]
            said = " ".join(str(step[key]) for key in ("model", "section", "function", "row", "round") if key in step)
            what = "ok" if shown["ok"] else shown["error"].strip().splitlines()[0][:300]
            say(f"{time.monotonic() - started:6.1f} s  {said}: {what}")
            if args.out and (step["section"] == "end" or not shown["ok"]):
                write(args.out, report, subjects, steps, outcomes, [])

        foreign = play(self.server(), self.browser, self.flags, steps, keep, args.budget)
        report["seconds"] = round(time.monotonic() - started, 1)
        good = write(args.out, report, subjects, steps, outcomes, foreign)
        print(table(report))
        return 0 if good else 1

    def server(self) -> BenchServer:
        folders = {name: place if place.is_dir() else place.parent for name, place in self.models.items()}
        return BenchServer(*self.where, folders)


TEXT_TOLERANCE = 0.01
"""How far the length of a prompt given as text may be from the others', as a share of these."""


def checked(outcome: dict[str, Any], step: Step) -> dict[str, Any]:
    """A generation is judged: as many ids as were asked for; and a correctness case: a good reply, the status of a
    script, the ids that were expected."""
    if step.get("function") == "generate" and outcome["ok"]:
        given, asked = len(outcome["data"]["ids"]), step["args"]["tokens"]
        if given != asked:
            return {**outcome, "ok": False, "error": f"{given} tokens came, {asked} were asked for"}
        # An engine that takes text makes its own ids of it, and may join some of the others'.
        seen, wanted = outcome["data"].get("prompt_tokens"), step.get("length")
        if seen is not None and wanted is not None and abs(seen - wanted) > TEXT_TOLERANCE * wanted:
            return {**outcome, "ok": False, "error": f"its prompt has {seen} tokens, others' has {wanted}"}
    if step["action"] != "request" or not outcome["ok"]:
        return outcome
    reply = outcome["data"]["reply"]
    result = reply.get("result") or {}
    expected = step.get("expected")
    if not reply["ok"]:
        return {**outcome, "ok": False, "error": f"{reply['error']['type']}: {reply['error']['message']}"}
    if result.get("status", 0) != 0:
        return {**outcome, "ok": False, "error": outcome["data"]["stderr"] or "the script failed"}
    if expected is not None and result["token_ids"] != expected:
        return {**outcome, "ok": False, "error": f"ids are {result['token_ids']}, expected {expected}"}
    return outcome


def write(
    out: Path | None,
    report: dict[str, Any],
    subjects: Mapping[str, Subject],
    steps: Sequence[Step],
    outcomes: Sequence[dict[str, Any]],
    foreign: Sequence[str],
) -> bool:
    """Bring the report up to date and write it; whether all is good."""
    report["summary"] = summarize(outcomes)
    with_truth = {name for name, subject in subjects.items() if subject.chats}
    report["float32"] = against_float32(outcomes, subjects)
    wrong = [entry for found in report["float32"].values() for entry in found["wrong"]]
    report["disagreements"] = disagreements(outcomes, with_truth) + wrong
    report["transcripts"] = transcripts(outcomes)
    report["failures"] = failures([step for step in steps if step["id"] <= len(outcomes) - 1], outcomes)
    report["over budget"] = over_budget(outcomes)
    report["requests to other hosts"] = list(foreign)
    report["cases"] = [step for step in outcomes if step["section"] == "cases"]
    report["steps"] = [compact(step) for step in outcomes if step["section"] not in ("cases", "end")]
    if out:
        temporary = out.with_suffix(".new")
        temporary.write_text(json.dumps(report, indent=1) + "\n")
        temporary.replace(out)
        render(out, report)
    return not any(report[name] for name in FAULTS)


def render(out: Path, report: dict[str, Any]) -> None:
    """Write the report as text and as a page beside its JSON."""
    out.with_suffix(".txt").write_text(table(report) + "\n")
    out.with_suffix(".html").write_text(page(report))


def compact(step: dict[str, Any]) -> dict[str, Any]:
    """A step for the file: only the first ids, and no operations, which are in the summary."""
    data = step.get("data")
    if not isinstance(data, dict):
        return step
    data = {name: value for name, value in data.items() if name not in ("operations", "ids", "text", "reply")} | (
        {"ids": data["ids"][:16]} if "ids" in data else {}
    )
    return {**step, "data": data}


def default_sections(software: bool) -> list[str]:
    """Those of a run that names none: on a software adapter only what means something there."""
    asked_for = ("load", "frames", "caches")
    elsewhere = ("rest", "uses", "rows", "runs", "agreement", "transcript", "lengths", "gpu", "ablation")
    left_out = (*asked_for, *elsewhere) if software else (*asked_for, "cases")
    return [name for name in SECTIONS if name not in left_out]


def version(browser: Path) -> str:
    return subprocess.run([browser, "--version"], capture_output=True, text=True, check=False).stdout.strip()


def gpu() -> str | None:
    """The GPU's name by nvidia-smi; None without it."""
    if not shutil.which("nvidia-smi"):
        return None
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip() or None


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(argv: Sequence[str]) -> int:
    """`python3 -m benches.runner.main [options] MODEL ...` in an unpacked pack."""
    parser = argparse.ArgumentParser(prog="python3 -m benches.runner.main", description=__doc__)
    files = "folders of the model builder, or GGUF files"
    parser.add_argument("models", metavar="MODEL", nargs="*", type=Path, help=files)
    parser.add_argument(
        "--render", metavar="FILE.json", type=Path, help="write FILE.txt and FILE.html, measure nothing"
    )
    parser.add_argument("--browser", default=os.environ.get("CHROME", "chromium"), help="default: $CHROME, chromium")
    parser.add_argument("--flags", help="the browser's flags for WebGPU; default: those for a GPU on Linux")
    add_run_arguments(parser)
    args = parser.parse_args(argv)
    try:
        return render_again(args.render) if args.render else measure(args)
    except CommandError as error:
        say(f"error: {error}")
        return error.status


def render_again(file: Path) -> int:
    """The text and the page of a results file."""
    try:
        render(file, json.loads(file.read_text()))
    except (OSError, ValueError, KeyError) as error:
        raise CommandError(f"{file} cannot be rendered ({error!r}): name the JSON that a run wrote") from error
    return 0


def measure(args: argparse.Namespace) -> int:
    """A pack's run."""
    check_run_arguments(args)
    if not args.models:
        raise CommandError("no model: name a folder or a GGUF file, as models/nano-llama")
    models = named(args.models)
    browser = shutil.which(args.browser)
    if browser is None:
        raise CommandError(f"{args.browser} is not a program: name the browser with --browser")
    if not (PACK / "about.json").is_file():
        raise CommandError(f"{PACK} is no unpacked pack: in a checkout, run python3 build.py bench")
    about = json.loads((PACK / "about.json").read_text())
    cases = json.loads((PACK / "cases.json").read_text()) if (PACK / "cases.json").is_file() else []
    bench = Bench(
        site=PACK / "site",
        page=PACK / "benches/page",
        packages={name: PACK / name for name in PACKAGED if (PACK / name).is_dir()},
        models=models,
        browser=Path(browser),
        flags=args.flags.split() if args.flags else about["flags"],
        about=about,
        cases=cases,
    )
    return bench.run(args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
