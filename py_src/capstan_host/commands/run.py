"""`run`: complete a prompt with a model in headless Chromium, or hold a conversation with it (--chat)."""

from __future__ import annotations

import argparse
import asyncio
import json
from base64 import b64encode
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..chat_model import SMOLLM2, default_model
from ..command_errors import CommandError, raise_remote
from ..model_arguments import (
    DTYPES,
    add_hub_arguments,
    add_options,
    check_chat_template,
    check_place,
    given_options,
    model_url,
    mounts,
    repository,
)
from ..piped import is_piped, read_piped, with_piped
from ..speaking import add_voice_arguments, require_no_voice, speak, speaks, voice_requests
from ..speech import add_speech_arguments, hears, names_sound, require_no_sound, speech_requests, transcribe
from ..terminal import Output, say
from ..trace import add_trace_argument, trace_file, trace_query, write_trace

__all__ = ["GROUP", "add_arguments", "add_search_arguments", "add_shared_arguments", "check", "read_search", "run"]

GROUP = "run"
NEW_TOKENS = 256
GRAMMARS = {"json_schema": "FILE", "regex": "EXPRESSION", "lark_grammar": "FILE", "ebnf": "FILE"}
SYSTEM = "a system message before the prompt or the conversation, for a model with a chat template"
NUMBER_LIMIT = 2**53
"""Integers up to here cross the page's JavaScript unchanged."""


def search_options() -> tuple[Any, ...]:
    """The options of the stages of a search that the command line has (capstan.stages.Option)."""
    from capstan.stages.search import STAGE_OPTIONS

    return tuple(option for option in STAGE_OPTIONS if option.help)


def speculation_options() -> tuple[Any, ...]:
    """The options of speculation that the command line has (capstan.stages.Option)."""
    from capstan.stages.speculation_options import SPECULATION_OPTIONS

    return SPECULATION_OPTIONS


def tables() -> tuple[type, ...]:
    """The options of answers and conversations, of the model, and of generators."""
    from capstan.generation.run_options import AnswerOptions, GeneratorOptions, TalkOptions
    from capstan.loading.load_options import PageOptions

    return AnswerOptions, TalkOptions, PageOptions, GeneratorOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `run`."""
    add = parser.add_argument_group("prompt").add_argument
    add("text", nargs="?", help="the prompt: a message, if the model has a chat template, else a text to continue")
    add("--prompt", metavar="TEXT", help="the prompt, as an option")
    add("--prompt-ids", metavar="1,2,3", help="the prompt as token ids")
    add("--raw", action="store_true", help="continue the prompt, also with a model that has a chat template")
    add("--system", metavar="TEXT", help=SYSTEM)
    add("--image", action="append", metavar="FILE", help="a picture before the prompt, for a model that sees")
    add("--chat", action="store_true", help="hold a conversation, as the command chat does")
    output = add_shared_arguments(parser)
    add_speech_arguments(parser)
    add_voice_arguments(parser)
    output.add_argument("--json", action="store_true", help="end stdout with one line of JSON")


def add_shared_arguments(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options of `run` and `chat`, in groups by subject; returns the group of the options for the output."""
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model",
        metavar="PLACE",
        help="a folder of onnxruntime-genai or Transformers.js, a GGUF file, or a hub's repository "
        f"(default: {SMOLLM2.title}, which is downloaded once)",
    )
    add_hub_arguments(model)
    model.add_argument(
        "--draft-model",
        metavar="PLACE",
        help="a smaller model of the same vocabulary: it drafts tokens, which the model verifies",
    )
    dtype = "which graph of a repository (default: one that suits the adapter)"
    model.add_argument("--dtype", choices=sorted(DTYPES), help=dtype)
    model.add_argument("--adapter", metavar="FILE", help="run the model with this LoRA adapter (.onnx_adapter)")
    add_search_arguments(parser.add_argument_group("sampling"))
    output = parser.add_argument_group("output")
    for table in tables()[:2]:
        add_options(output, table)
    add = output.add_argument
    for kind, metavar in GRAMMARS.items():
        what = "the output matches" if kind == "regex" else "the file has a grammar of the output"
        add(f"--{kind.replace('_', '-')}", dest=kind, metavar=metavar, help=what)
    device = parser.add_argument_group("device")
    for table in tables()[2:]:
        add_options(device, table)
    advanced = parser.add_argument_group("advanced")
    add = advanced.add_argument
    for option in speculation_options():
        add(option.argument, dest=option.name, type=option.type, metavar=option.metavar, help=option.help)
    add_trace_argument(advanced)
    return output


def add_search_arguments(parser: argparse._ActionsContainer) -> None:
    """The options of a search."""
    add = parser.add_argument
    help_text = "take the likeliest token at each step; options that edit logits or end the text still hold"
    add("--greedy", action="store_true", help=help_text)
    for option in search_options():
        kind = option.type if option.type in (int, float) else str
        action = "append" if option.repeated else "store"
        add(option.argument, dest=option.name, type=kind, action=action, metavar=option.metavar, help=option.help)


def check(args: argparse.Namespace) -> None:
    """Refuse invalid arguments before a browser starts, and set `args.request` and `args.served` (the models to serve).
    Both lack the model if none was named.
    """
    args.served = []
    hub = None if args.model is None else repository(args.model, args.hub, args.revision)
    args.hears = names_sound(args.text) if hub is not None else args.model is not None and hears(Path(args.model))
    # A hub's model speaks if a file for it is named.
    named = getattr(args, "out", None) is not None
    args.speaks = named if hub is not None else args.model is not None and speaks(Path(args.model))
    if not args.speaks:
        require_no_voice(args, args.model or SMOLLM2.title)
    if args.hears or args.speaks:
        check_speech(args)
        return
    require_no_sound(args, args.model or SMOLLM2.title)
    asked = read_chat(args) if args.chat else read_completion(args)
    args.trace = trace_file(args.trace)
    args.request = {"model": None, "search": read_search(args), **read_options(args), **asked}
    if args.model is not None:
        args.request["model"] = hub or mounted(Path(args.model), args)
    if args.draft_model is not None:
        draft = repository(args.draft_model, args.hub, None)
        args.request["draft_model"] = draft or served(check_place(Path(args.draft_model)), args)


def read_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options that were given besides those of a search and of the prompt, by the names of a request's fields."""
    given = [given_options(args, table) for table in tables()]
    found = {name: value for each in given for name, value in each.items()}
    return {**found, **read_speculation(args), **read_guidance(args), **read_adapter(args)}


def check_speech(args: argparse.Namespace) -> None:
    """Like `check`, for a model that hears or speaks: `args.request` becomes a list of requests."""
    names = ("prompt", "prompt_ids", "raw", "system", "image", "chat", "trace", "draft_model")
    ours = {name: getattr(args, name) for name in names}
    others = {name: value for name, value in ours.items() if value not in (None, False)}
    search = {name: value for name, value in read_search(args).items() if name != "do_sample"}
    given = {**others, **search, **read_options(args)}
    load, asked = (voice_requests if args.speaks else speech_requests)(args, given)
    model = repository(args.model, args.hub, args.revision) or mounted(Path(args.model), args)
    args.request = [{**load, "model": model}, asked]


def mounted(path: Path, args: argparse.Namespace) -> str:
    """Check a model of this machine, add it to the models to serve, and return its address in the page."""
    model = check_place(path)
    if args.chat or args.system is not None:
        check_chat_template(model)
    return served(model, args)


def served(model: Path, args: argparse.Namespace) -> str:
    """Add a model to the models to serve, and return its address in the page."""
    args.served.insert(0, model)
    [name] = mounts([model])
    mounts(args.served)
    return model_url(name)


def read_completion(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of a request that completes a prompt."""
    prompt, prompt_ids = read_prompt(args)
    if args.max_length is not None:
        raise CommandError("--max-length is for --chat: give --max-new-tokens for one prompt")
    request: dict[str, Any] = {"kind": "generate", "prompt": prompt, "prompt_ids": prompt_ids}
    if args.max_new_tokens is None:
        request["max_new_tokens"] = NEW_TOKENS
    other = "--raw" if args.raw else "--prompt-ids" if prompt_ids is not None else None
    if args.system is not None and other:
        raise CommandError(f"--system and {other} were both given: a system message is for a chat template")
    if args.image and other:
        raise CommandError(f"--image and {other} were both given: a picture is for a chat template")
    if other:
        return request
    images = {"images": [picture(Path(file)) for file in args.image]} if args.image else {}
    return {**request, "as_message": True, **images, **({} if args.system is None else {"system": args.system})}


def picture(path: Path) -> str:
    """A picture's file as a `data:` address."""
    try:
        return "data:;base64," + b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise CommandError(
            f"--image: {path} cannot be read ({error}): give a PNG, JPEG, WebP, BMP or GIF file"
        ) from None


def read_chat(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of a request that begins a conversation."""
    given = {"a prompt": args.text or args.prompt, "--prompt-ids": args.prompt_ids, "--json": args.json or None}
    given |= {"--raw": args.raw or None, "--image": args.image}
    for name, value in given.items():
        if value is not None:
            raise CommandError(f"--chat and {name} were both given: --chat asks for messages and prints answers")
    return {"kind": "chat", "messages": []}


def read_prompt(args: argparse.Namespace) -> tuple[str | None, list[int] | None]:
    """The given prompt, as text or as token ids; both are None if the whole prompt comes from a pipe."""
    given = {"the positional prompt": args.text, "--prompt": args.prompt, "--prompt-ids": args.prompt_ids}
    names = [name for name, value in given.items() if value is not None]
    if not names:
        if is_piped():
            return None, None
        example = f'{args.machine.program} run "Why is the sky blue?"'
        raise CommandError(f"no prompt: give one, as in {example}, pipe one, or give --prompt-ids 1,2,3")
    if len(names) > 1:
        raise CommandError(f"{' and '.join(names)} were both given: give one prompt")
    if args.prompt_ids is None:
        text: str = args.text if args.text is not None else args.prompt
        if not text:
            raise CommandError("the prompt is empty: give at least one character")
        return text, None
    parts = [part.strip() for part in args.prompt_ids.split(",")]
    if parts == [""]:
        raise CommandError("--prompt-ids is empty: give at least one token id")
    wrong = next((part for part in parts if not (part.isascii() and part.isdigit())), None)
    if wrong is not None:
        raise CommandError(f"--prompt-ids holds {wrong!r}, which is not a token id: give integers from 0, as in 1,2,3")
    return None, [int(part) for part in parts]


def read_search(args: argparse.Namespace) -> dict[str, Any]:
    """The given search options, by onnxruntime-genai's names; their stages check them."""
    from capstan.errors import OptionError

    search: dict[str, Any] = {}
    draws = False
    for option in search_options():
        given = getattr(args, option.name)
        if given is None:
            continue
        try:
            value = given if option.type in (int, float) or option.repeated else option.type(given)
            option.read(value)
        except OptionError as error:
            raise CommandError(f"{option.argument}: {error}") from None
        if isinstance(value, int) and value > NUMBER_LIMIT:
            raise CommandError(f"{option.argument} is {value}, but must be at most {NUMBER_LIMIT}: give a smaller one")
        if args.greedy and option.drawing:
            raise CommandError(f"--greedy and {option.argument} contradict each other: give one of them")
        draws |= option.drawing
        search[option.name] = value
    if args.greedy:
        return {"do_sample": False, **search}
    return {"do_sample": True, **search} if draws else search


def read_speculation(args: argparse.Namespace) -> dict[str, Any]:
    """The given options of speculation, checked; empty without --speculate."""
    from capstan.errors import OptionError

    given = {}
    for option in speculation_options():
        if (value := getattr(args, option.name)) is not None:
            try:
                given[option.name] = option.read(value)
            except OptionError as error:
                raise CommandError(f"{option.argument}: {error}") from None
    if args.draft_model is not None and args.ngram_size is not None:
        raise CommandError("--draft-model and --speculate were both given: drafts come from one of them")
    if given and args.ngram_size is None and args.draft_model is None:
        raise CommandError(
            "--draft-tokens is given, but neither --speculate nor --draft-model: give one, as in --speculate 3"
        )
    return {"speculation": given} if given else {}


def read_guidance(args: argparse.Namespace) -> dict[str, Any]:
    """The given grammar, checked; empty if none was given."""
    from capstan.errors import OptionError
    from capstan.guidance import Guidance

    given = {kind: getattr(args, kind) for kind in GRAMMARS if getattr(args, kind) is not None}
    names = [f"--{kind.replace('_', '-')}" for kind in given]
    if len(given) > 1:
        raise CommandError(f"{' and '.join(names)} were both given: an output follows one grammar")
    for (kind, data), name in zip(given.items(), names, strict=True):
        if GRAMMARS[kind] == "FILE":
            try:
                data = Path(data).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise CommandError(f"{name}: {data} cannot be read ({error}): give a text file") from None
        try:
            Guidance(kind, data)
        except OptionError as error:
            raise CommandError(f"{name}: {error}") from None
        if (args.run_ahead or 1) > 1:
            raise CommandError(f"--run-ahead and {name} contradict each other: no step runs ahead under a grammar")
        return {"guidance": {"type": kind, "data": data}}
    return {}


def read_adapter(args: argparse.Namespace) -> dict[str, Any]:
    """The request's field for the given adapter, whose folder will be served, too; empty if none was given."""
    if args.adapter is None:
        return {}
    path = Path(args.adapter).resolve()
    if not path.is_file():
        raise CommandError(f"--adapter: {args.adapter} is not a file: give an adapter file (.onnx_adapter)")
    args.served.append(path.parent)
    return {"adapter": model_url(path.parent.name) + quote(path.name)}


def run(args: argparse.Namespace) -> int:
    """Generate; the text goes to stdout as it comes, everything else to stderr."""
    if args.hears:
        return asyncio.run(transcribe(args))
    if args.speaks:
        return speak(args)
    if args.model is None:
        args.request["model"] = mounted(default_model(), args)
    if args.chat:
        from ..terminal_conversation import converse

        return converse(args.request, mounts(args.served), args.machine, args.system, args.debug, args.trace)
    if args.request["prompt_ids"] is None and is_piped():
        args.request["prompt"] = with_piped(args.request["prompt"], read_piped())
    return asyncio.run(generate(args))


async def generate(args: argparse.Namespace) -> int:
    """Open the page, send the request, print its events."""

    from ..digests import Digests
    from ..headless.headless_page import HeadlessPage
    from ..site_server import serving

    output = Output()
    try:
        with serving(args.machine.site(), mounts(args.served), digests=Digests()) as server:
            program, query = args.machine.browser(), trace_query(args.trace)
            async with HeadlessPage(
                server.url, output.show, None, program, args.device, debug=args.debug, query=query
            ) as page:
                async with output.ticking():
                    reply = await page.request(args.request)
                output.end_line()
                if args.trace:
                    await write_trace(page, args.trace)
    finally:
        output.end_line()
    if not reply["ok"]:
        raise_remote(reply["error"])
    if reply["result"]["capture"] == "tape":
        say(tape_counts(reply["result"]["counters"]))
    say(summary(reply["result"]))
    if args.json:
        print(json.dumps(reply["result"]), flush=True)
    return 0


def tape_counts(counts: dict[str, int]) -> str:
    """The line with the counts of a tape's decode steps."""
    return (
        f"tape: {counts['steps']} steps in {counts['submits']} submits, {counts['readbacks']} readbacks of "
        f"{counts['readback_bytes']} bytes in all, {counts['python_crossings']} calls of Python; created: "
        f"{counts['create_buffer']} buffers, {counts['create_bind_group']} bind groups; buffer writes: "
        f"{counts['write_buffer']}"
    )


def summary(result: dict[str, Any]) -> str:
    """The one line that ends a run."""
    capture = result["capture"] + (f" ({result['capture_note']})" if result["capture_note"] else "")
    first = result["time_to_first_token_ms"]
    speed = result["tokens_per_second"]
    parts = [
        f"{result['model']}: {len(result['token_ids'])} tokens",
        "- tokens/s" if speed is None else f"{speed:.1f} tokens/s",
        "no first token" if first is None else f"first token after {first:.0f} ms",
        f"adapter {result['adapter']}",
        f"device {result['device']}",
        f"capture {capture}",
        f"finished by {result['finish_reason']}",
    ]
    drafted = result["speculation"]
    if drafted is not None:
        parts.append(f"{drafted['accepted']} of {drafted['proposed']} drafts accepted in {drafted['rounds']} steps")
    return ", ".join(parts)
