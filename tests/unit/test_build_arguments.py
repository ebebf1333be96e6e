"""The command line refuses what is wrong before any set-up: one line with the value, the limit and the remedy."""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

import pytest

from buildtools import cli
from capstan.loading import repository
from capstan.loading.embedded_repository import EMBEDDED, EMBEDDED_TYPES
from capstan.loading.picture_repository import SEEING, TILED_TYPES
from capstan.weights.manifest import Manifest, parse_manifest
from capstan_host.command_errors import CommandError
from capstan_host.commands import exec as exec_command
from capstan_host.commands import fleet as fleet_command
from capstan_host.commands import models as models_command
from capstan_host.commands import run as run_command
from capstan_host.commands import serve as serve_command
from capstan_host.model_arguments import BUNDLED, DTYPES, SEVERAL, check_model, graphs_of, mounts
from tests.gguf_files import gguf_file
from tests.voices import make_voice

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture(autouse=True)
def no_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "ensure", lambda group: pytest.fail("set-up began"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "nano"
    folder.mkdir()
    (folder / "genai_config.json").write_text(json.dumps({"model": {"decoder": {"filename": "model.onnx"}}}))
    (folder / "model.onnx").touch()
    return folder


def request(model: Path, *argv: str) -> dict[str, Any]:
    args = cli.parse(["run", *argv, "--model", str(model)])
    run_command.check(args)
    made: dict[str, Any] = args.request
    return made


def test_the_file_of_a_trace_is_tried_before_anything_begins(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    args = cli.parse(["run", "x", "--model", str(model), "--trace", str(folder / "trace.json")])
    run_command.check(args)
    assert args.trace.path == folder / "trace.json"
    assert list(folder.iterdir()) == []
    with pytest.raises(
        CommandError, match=r"--trace: .*/none/trace\.json \(No such file or directory\): give a path in an"
    ):
        request(model, "x", "--trace", str(folder / "none" / "trace.json"))
    with pytest.raises(CommandError, match=r"--trace: .*/traces, which is not a file: give the path of a file"):
        request(model, "--chat", "--trace", str(folder))


def test_an_adapter_is_served_from_its_folder(model: Path, tmp_path: Path) -> None:
    (model / "beside it.onnx_adapter").touch()
    folder = tmp_path / "tuned"
    folder.mkdir()
    (folder / "a.onnx_adapter").touch()
    assert request(model, "x", "--adapter", str(model / "beside it.onnx_adapter"))["adapter"] == (
        "/models/nano/beside%20it.onnx_adapter"
    )
    args = cli.parse(["run", "x", "--model", str(model), "--adapter", str(folder / "a.onnx_adapter")])
    run_command.check(args)
    assert args.request["adapter"] == "/models/tuned/a.onnx_adapter"
    assert mounts(args.served) == {"nano": model, "tuned": folder}
    with pytest.raises(CommandError, match=r"--adapter: .*none is not a file"):
        request(model, "x", "--adapter", str(folder / "none"))


def test_a_plain_prompt_asks_for_the_best_device_and_nothing_else(model: Path) -> None:
    assert request(model, "def f():") == {
        "kind": "generate",
        "model": "/models/nano/",
        "device": "auto",
        "prompt": "def f():",
        "prompt_ids": None,
        "as_message": True,
        "max_new_tokens": 256,
        "search": {},
    }


def test_pictures_go_before_the_prompt(model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"png")
    asked = request(model, "What?", "--image", str(tmp_path / "a.png"), "--image", str(tmp_path / "a.png"))
    assert (asked["prompt"], asked["images"]) == ("What?", ["data:;base64,cG5n"] * 2)


def test_a_text_to_continue_and_ids_are_no_message(model: Path) -> None:
    assert "as_message" not in request(model, "x", "--raw")
    assert "as_message" not in request(model, "--prompt-ids", "1")


WHISPER, WHISPER_HUB = FIXTURES / "speech/nano-whisper", FIXTURES / "speech/nano-whisper-hub"


def test_a_speech_model_takes_a_sound(tmp_path: Path) -> None:
    sound = tmp_path / "a.wav"
    sound.touch()
    load, asked = cast(list[dict[str, Any]], request(WHISPER, str(sound), "--greedy", "--device", "wasm"))
    assert load == {"kind": "load_transcriber", "model": "/models/nano-whisper/", "device": "wasm"}
    file = {"kind": "transcribe", "file": "/files/sound"}
    assert asked == {**file, "language": None, "task": None, "timestamps": False}
    _, asked = cast(list[dict[str, Any]], request(WHISPER, str(sound), "--vtt", "--language", "de"))
    assert (asked["timestamps"], asked["language"]) == (True, "de")
    for argv, message in (
        ([], "no sound: give a sound file"),
        ([str(tmp_path / "none.wav")], "there is no sound file"),
        ([str(tmp_path)], "there is no sound file"),
        ([str(sound), "--top-k", "3"], "--top-k is for models of text"),
        ([str(sound), "--chat"], "--chat is for models of text"),
        ([str(sound), "--max-new-tokens", "3"], "--max-new-tokens is for models of text"),
        ([str(sound), "--vtt", "--json"], "--vtt and --json were both given"),
    ):
        with pytest.raises(CommandError, match=re.escape(message)):
            request(WHISPER, *argv)


def test_a_repository_of_speech_is_a_folder_or_an_id(tmp_path: Path) -> None:
    sound = tmp_path / "a.wav"
    sound.touch()
    load, _ = cast(list[dict[str, Any]], request(WHISPER_HUB, str(sound)))
    assert (load["kind"], load["model"]) == ("load_transcriber", "/models/nano-whisper-hub/")
    load, asked = cast(
        list[dict[str, Any]], request(Path("onnx-community/whisper-tiny.en"), str(sound), "--dtype", "q4")
    )
    assert (load["kind"], load["model"]["repository"], load["dtype"]) == (
        "load_transcriber",
        "onnx-community/whisper-tiny.en",
        "q4",
    )
    assert asked["kind"] == "transcribe"
    assert request(Path("onnx-community/whisper-tiny.en"), "a.wav")["kind"] == "generate"
    shutil.copytree(WHISPER_HUB, tmp_path / "hub", ignore=shutil.ignore_patterns("*.onnx"))
    with pytest.raises(CommandError, match=r"no onnx/model\*\.onnx \(nor any other ONNX file\)"):
        request(tmp_path / "hub", str(sound))


def test_a_model_of_text_takes_no_sound(model: Path, tmp_path: Path) -> None:
    sound = tmp_path / "a.wav"
    assert request(model, str(sound))["prompt"] == str(sound)
    sound.touch()
    with pytest.raises(CommandError, match=r"a\.wav is a sound, but .*nano takes text: give --model a Whisper folder"):
        request(model, str(sound))
    with pytest.raises(CommandError, match="--language and --vtt were given, but"):
        request(model, "a", "--vtt", "--language", "de")
    with pytest.raises(CommandError, match="is a sound, but SmolLM2"):
        run_command.check(cli.parse(["run", str(sound)]))


def test_a_model_that_speaks_takes_a_text(model: Path, tmp_path: Path) -> None:
    kokoro = make_voice(tmp_path / "kokoro")
    load, asked = cast(list[dict[str, Any]], request(kokoro, "Hello!", "--voice", "bf_emma", "--dtype", "q8"))
    assert load == {"kind": "load_voice", "model": "/models/kokoro/", "device": "auto", "dtype": "q8"}
    assert asked == {"kind": "speak", "text": "Hello!", "voice": "bf_emma", "speed": None}
    for argv, message in (
        ([], "no text: give one"),
        (["a", "--top-k", "3"], "--top-k is for models of text"),
        (["a", "--chat"], "--chat is for models of text"),
    ):
        with pytest.raises(CommandError, match=re.escape(message)):
            request(kokoro, *argv)
    for other in (model, WHISPER):
        with pytest.raises(CommandError, match=r"--out and --speed were given, but .* does not speak"):
            request(other, "a", "--out", "a.wav", "--speed", "2")


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    file = tmp_path / "files/a model.gguf"
    file.parent.mkdir()
    file.write_bytes(gguf_file({"general.architecture": "llama", "tokenizer.chat_template": "{{ messages }}"}))
    return file


def test_a_gguf_file_is_a_model(gguf: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to(gguf)
    for file, url in ((gguf, "/models/a%20model.gguf"), (link, "/models/link.gguf")):
        args = cli.parse(["run", "--chat", "--model", str(file)])
        run_command.check(args)
        assert (args.request["model"], mounts(args.served)) == (url, {file.name: gguf})
    args = cli.parse(["serve", "--model", str(gguf)])
    serve_command.check(args)
    assert args.mounts == {"a model.gguf": gguf, "bundled": BUNDLED}
    script = tmp_path / "s.py"
    script.touch()
    args = cli.parse(["exec", str(script), "--model", str(gguf)])
    exec_command.check(args)
    assert (args.mounts, args.models) == ({"a model.gguf": gguf}, {"a model.gguf": "/models/a%20model.gguf"})
    assert args.files[gguf.as_posix()] == "/models/a%20model.gguf"


def test_a_gguf_file_that_is_damaged_or_has_no_chat_template_is_refused(gguf: Path) -> None:
    gguf.write_bytes(gguf_file({"general.architecture": "llama"}))
    assert request(gguf, "x")["model"] == "/models/a%20model.gguf"
    with pytest.raises(
        CommandError, match=r"a model.gguf has no chat template \(tokenizer.chat_template\): give --model"
    ):
        request(gguf, "--chat")
    gguf.write_bytes(gguf.read_bytes()[:40])
    for command in (["run", "x"], ["serve"]):
        args = cli.parse([*command, "--model", str(gguf)])
        with pytest.raises(CommandError, match=r"a model.gguf: the file ends at byte"):
            cli.COMMANDS[args.command][0].check(args)
    with pytest.raises(CommandError, match=r"none.gguf does not exist: give a GGUF file, or a folder that"):
        request(gguf.with_name("none.gguf"), "x")


def test_who_names_no_model_gets_the_default_one(gguf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found: list[tuple[str, dict[str, Path]]] = []

    async def generate(args: argparse.Namespace) -> int:
        found.append((args.request["model"], mounts(args.served)))
        return 0

    monkeypatch.setattr(run_command, "generate", generate)
    monkeypatch.setattr(run_command, "default_model", lambda: gguf)
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned/a.onnx_adapter").touch()
    args = cli.parse(["run", "x", "--adapter", str(tmp_path / "tuned/a.onnx_adapter")])
    run_command.check(args)
    assert run_command.run(args) == 0
    assert found == [("/models/a%20model.gguf", {"a model.gguf": gguf, "tuned": tmp_path / "tuned"})]


def test_a_conversation_needs_a_chat_model_where_the_bundled_one_is_all_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_command, "default_model", lambda: BUNDLED)
    args = cli.parse(["run", "--chat"])
    run_command.check(args)
    with pytest.raises(CommandError, match=r"models/bundled has no chat template"):
        run_command.run(args)


def test_options_reach_the_request(model: Path) -> None:
    made = request(model, "--prompt-ids", "1, 2,3", "--run-ahead", "3", "--max-new-tokens", "7", "--capture", "ort")
    assert (made["prompt_ids"], made["prompt"], made["run_ahead"], made["max_new_tokens"]) == ([1, 2, 3], None, 3, 7)
    assert made["capture"] == "ort"
    assert request(model, "--prompt", "x", "--greedy")["search"] == {"do_sample": False}
    sampled = request(model, "x", "--temperature", "0.5", "--top-k", "5", "--top-p", "1", "--seed", "0")["search"]
    assert sampled == {"do_sample": True, "temperature": 0.5, "top_k": 5, "top_p": 1.0, "random_seed": 0}
    assert request(model, "x", "--seed", "4")["search"] == {"do_sample": True, "random_seed": 4}
    assert request(model, "x", "--min-p", "0.05")["search"] == {"do_sample": True, "min_p": 0.05}
    penalty = ("--repetition-penalty", "1.1")
    assert request(model, "x", *penalty)["search"] == {"repetition_penalty": 1.1}
    assert request(model, "x", "--greedy", *penalty)["search"] == {"do_sample": False, "repetition_penalty": 1.1}


def test_options_of_every_stage_reach_the_request(model: Path) -> None:
    argv = ["--no-repeat-ngram-size", "3", "--bad-words-ids", "1,2;3", "--logit-bias", "12:-5,7:1.5", "--max-time", "2"]
    argv += ["--stop", "a b", "--stop", ";"]
    argv += ["--stop-token-ids", "4,5", "--presence-penalty", "0.5", "--frequency-penalty", "-1", "--min-length", "9"]
    assert json.loads(json.dumps(request(model, "x", "--greedy", *argv)["search"])) == {
        "do_sample": False,
        "no_repeat_ngram_size": 3,
        "bad_words_ids": [[1, 2], [3]],
        "logit_bias": [[12, -5.0], [7, 1.5]],
        "max_time": 2.0,
        "stop_token_ids": [4, 5],
        "stop_strings": ["a b", ";"],
        "presence_penalty": 0.5,
        "frequency_penalty": -1.0,
        "min_length": 9,
    }


def test_a_grammar_reaches_the_request(model: Path, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"type": "integer"}')
    made = request(model, "x", "--json-schema", str(tmp_path / "schema.json"))
    assert made["guidance"] == {"type": "json_schema", "data": '{"type": "integer"}'}
    assert request(model, "x", "--regex", "[0-9]+")["guidance"] == {"type": "regex", "data": "[0-9]+"}


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--regex", "(a"), r"--regex: regex '\(a', column 1: the group is not closed"),
        (("--regex", "a", "--ebnf", "b"), "--regex and --ebnf were both given"),
        (("--regex", "a", "--run-ahead", "4"), "--run-ahead and --regex contradict each other"),
        (("--json-schema", "no-such-file"), "--json-schema: no-such-file cannot be read"),
    ],
)
def test_a_grammar_that_cannot_be_used_is_refused_without_a_browser(
    argv: tuple[str, ...], said: str, model: Path
) -> None:
    with pytest.raises(CommandError, match=said):
        request(model, "x", *argv)


def test_a_conversation_begins_without_messages(model: Path) -> None:
    (model / "chat_template.jinja").write_text("{{ messages }}")
    assert request(model, "--chat", "--greedy", "--max-length", "9") == {
        "kind": "chat",
        "model": "/models/nano/",
        "device": "auto",
        "messages": [],
        "max_length": 9,
        "search": {"do_sample": False},
    }


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, " has no chat template (chat_template in tokenizer_config.json, or chat_template.jinja): give --model"),
        ("{}", " has no chat template"),
        ("[", "/tokenizer_config.json is not JSON"),
        ("[" * 100_000, "/tokenizer_config.json is not JSON"),
        ('{"chat_template": "{{ messages }}"}', None),
    ],
)
def test_a_model_without_a_chat_template_has_no_conversations(
    model: Path, config: str | None, message: str | None
) -> None:
    if config is not None:
        (model / "tokenizer_config.json").write_text(config)
    if message is None:
        assert request(model, "--chat")["kind"] == "chat"
        assert request(model, "hello", "--system", "Be brief.")["system"] == "Be brief."
    else:
        for argv in (["--chat"], ["hello", "--system", "Be brief."]):
            with pytest.raises(CommandError, match=re.escape(f"{model}{message}")):
                request(model, *argv)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--chat", "a"], "--chat and a prompt were both given"),
        (["--chat", "--prompt-ids", "1"], "--chat and --prompt-ids were both given"),
        (["--chat", "--json"], "--chat and --json were both given"),
        (["--chat", "--raw"], "--chat and --raw were both given"),
        (["--chat", "--max-length", "0"], "--max-length is 0; it must be at least 1"),
        (["a", "--max-length", "9"], "--max-length is for --chat"),
        (["a", "--system", "b", "--raw"], "--system and --raw were both given"),
        (["--prompt-ids", "1", "--system", "b"], "--system and --prompt-ids were both given"),
        (["a", "--image", "b", "--raw"], "--image and --raw were both given"),
        (["--chat", "--image", "b"], "--chat and --image were both given"),
        (["a", "--image", "none.png"], "--image: none.png cannot be read"),
        ([], "no prompt"),
        ([""], "the prompt is empty"),
        (["--prompt", ""], "the prompt is empty"),
        (["a", "--prompt", "b"], "the positional prompt and --prompt were both given"),
        (["a", "--prompt-ids", "1"], "the positional prompt and --prompt-ids were both given"),
        (["--prompt-ids", ""], "--prompt-ids is empty"),
        (["--prompt-ids", "1,x"], "--prompt-ids holds 'x'"),
        (["--prompt-ids", "1,,2"], "--prompt-ids holds ''"),
        (["--prompt-ids", "1,-2"], "--prompt-ids holds '-2'"),
        (["a", "--max-new-tokens", "0"], "--max-new-tokens is 0; it must be at least 1"),
        (["a", "--max-new-tokens", "many"], "argument --max-new-tokens: invalid int value: 'many'"),
        (["a", "--run-ahead", "0"], "--run-ahead is 0; it must be from 1 to 64"),
        (["a", "--temperature", "-1"], "--temperature: temperature is -1.0; it must be at least 0"),
        (["a", "--temperature", "nan"], "--temperature: temperature is nan; it must be a finite number"),
        (["a", "--temperature", "inf"], "--temperature: temperature is inf; it must be a finite number"),
        (["a", "--top-k", "-1"], "--top-k: top_k is -1; it must be from 0 to 2147483647"),
        (["a", "--top-p", "-0.1"], "--top-p: top_p is -0.1; it must be from 0 to 1"),
        (["a", "--top-p", "1.01"], "--top-p: top_p is 1.01; it must be from 0 to 1"),
        (["a", "--top-p", "nan"], "--top-p: top_p is nan; it must be a finite number"),
        (["a", "--min-p", "1.5"], "--min-p: min_p is 1.5; it must be from 0 to 1"),
        (
            ["a", "--repetition-penalty", "0"],
            "--repetition-penalty: repetition_penalty is 0.0; it must be greater than 0",
        ),
        (["a", "--greedy", "--min-p", "0.1"], "--greedy and --min-p contradict each other"),
        (["a", "--seed", "-2"], "--seed: random_seed is -2; it must be from -1"),
        (["a", "--seed", str(2**60)], f"--seed is {2**60}, but must be at most {2**53}"),
        (["a", "--stop-token-ids", "1,x"], "--stop-token-ids: 'x' is not a token id: give integers from 0"),
        (["a", "--bad-words-ids", "1,2;"], "--bad-words-ids: '' is not a token id"),
        (["a", "--logit-bias", "12"], "--logit-bias: '12' is not a token id with a number"),
        (["a", "--logit-bias=-1:2"], "--logit-bias: a token of logit_bias is -1; it must be from 0"),
        (["a", "--frequency-penalty", "3"], "--frequency-penalty: frequency_penalty is 3.0; it must be from -2 to 2"),
        (["a", "--stop", ""], "--stop: stop_strings has ''; each must be a string of at least one character"),
        (["a", "--max-time", "0"], "--max-time: max_time is 0.0; it must be greater than 0 seconds"),
        (["a", "--greedy", "--temperature", "1"], "--greedy and --temperature contradict each other"),
        (["a", "--greedy", "--seed", "1"], "--greedy and --seed contradict each other"),
        (["a", "--device", "cuda"], "argument --device: invalid choice: 'cuda'"),
        (["a", "--capture", "graph"], "argument --capture: invalid choice: 'graph'"),
        (["a", "--max-tokens", "3"], "unrecognized arguments: --max-tokens 3; build.py run --help lists the options"),
        (["a", "b"], "unrecognized arguments: b"),
    ],
)
def test_wrong_arguments_of_run(model: Path, capsys: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    assert cli.main(["run", *argv, "--model", str(model)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["walk"], "argument COMMAND: invalid choice: 'walk'"),
        (["exec"], "the following arguments are required: SCRIPT.py"),
        (["exec", "/nowhere/s.py"], "cannot read the script /nowhere/s.py (No such file or directory)"),
        (["exec", "/"], "cannot read the script / (Is a directory)"),
        (["serve", "--port", "70000"], "--port is 70000, but must be from 0 to 65535"),
        (
            ["serve", "--transformers-js", "/nowhere"],
            "--transformers-js is /nowhere, where there is no transformers.min",
        ),
        (["serve", "--model", "/nowhere"], "model folder /nowhere does not exist"),
    ],
)
def test_wrong_arguments_of_the_other_commands(
    capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    assert cli.main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1


def test_debug_shows_the_stack(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "", "--model", str(model), "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_what_follows_two_dashes_is_the_scripts(tmp_path: Path) -> None:
    args = cli.parse(["exec", "s.py", "--model", "m", "--", "--model", "x", "--", "y"])
    assert (args.script, args.model, args.rest) == ("s.py", ["m"], ["--model", "x", "--", "y"])


def test_everything_after_test_is_pytests() -> None:
    assert cli.parse(["test", "-k", "server", "--debug", "tests/unit"]).pytest_args == [
        "-k",
        "server",
        "--debug",
        "tests/unit",
    ]


def test_a_script_is_given_any_folder_with_an_onnx_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "s.py"
    script.touch()
    folder = tmp_path / "any"
    folder.mkdir()
    command = ["exec", str(script), "--model", str(folder)]
    assert cli.main(command) == 2
    assert "has neither genai_config.json nor an .onnx file" in capsys.readouterr().err
    (folder / "model.onnx").touch()
    args = cli.parse(command)
    exec_command.check(args)
    assert args.mounts == {"any": folder}
    (folder / "genai_config.json").write_text("[]")
    assert cli.main(command) == 2, "a folder of the builder's is checked as one"


def test_files_of_a_script_and_of_its_models_are_at_the_paths_that_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("s.py", "common/a.py", "common/deep/b c.txt", "models/any/model.onnx", "models/any/x/y.json"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    args = cli.parse(["exec", "s.py", "--file", "common", "--model", "models/any"])
    exec_command.check(args)
    served = {path: args.served[unquote(args.files[path])] for path in ("s.py", "common/a.py", "common/deep/b c.txt")}
    assert served == {path: Path(path) for path in served}
    assert {path: url for path, url in args.files.items() if path.startswith("models")} == {
        "models/any/model.onnx": "/models/any/model.onnx",
        "models/any/x/y.json": "/models/any/x/y.json",
    }
    assert cli.main(["exec", "s.py", "--file", "nowhere"]) == 2


def test_a_run_of_a_configuration_of_10_000_levels_ends_with_a_message(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deep = "[" * 10_000 + "]" * 10_000
    (model / "genai_config.json").write_text(f'{{"model": {{"decoder": {deep}}}}}')
    assert cli.main(["run", "--model", str(model), "--prompt", "x"]) == 2
    [told] = capsys.readouterr().err.splitlines()
    assert told.startswith(f"error: {model}/genai_config.json is not JSON (maximum recursion depth exceeded")


def test_a_script_that_is_not_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "s.py"
    script.write_bytes(b"\xff\xfe")
    assert cli.main(["exec", str(script)]) == 2
    assert "not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, r"has no genai_config.json: give a folder"),
        ('{"model": ', r"genai_config.json is not JSON \(.*line 1 column 11.*\): repair it"),
        ("[" * 100_000, r"genai_config.json is not JSON \(.*recursion.*\): repair it"),
        ("[]", r"model.decoder.filename is not a string"),
        ('{"model": {"decoder": {"filename": 3}}}', r"model.decoder.filename is not a string"),
        ('{"model": {"decoder": {"filename": "gone.onnx"}}}', r"model file .*gone.onnx does not exist"),
    ],
)
def test_a_model_folder_that_cannot_work_is_refused(tmp_path: Path, config: str | None, message: str) -> None:
    if config is not None:
        (tmp_path / "genai_config.json").write_text(config)
    with pytest.raises(CommandError, match=message):
        check_model(tmp_path)


def test_a_repository_needs_a_graph(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CommandError, match=r"no onnx/model\*\.onnx \(nor any other ONNX file\): give a folder"):
        check_model(tmp_path)
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "decoder_model_merged.onnx").touch()
    with pytest.raises(CommandError, match=r"\(its ONNX files are onnx/decoder_model_merged\.onnx\): give a folder"):
        check_model(tmp_path)
    (tmp_path / "onnx" / "model_q4.onnx").touch()
    assert check_model(tmp_path) == tmp_path.resolve()
    assert graphs_of(tmp_path) == [tmp_path / "onnx" / "model_q4.onnx"]


def test_graphs_beside_a_decoder_are_those_of_the_package() -> None:
    seeing = dict.fromkeys(TILED_TYPES, SEEING)
    assert dict.fromkeys(EMBEDDED_TYPES, EMBEDDED) | seeing == SEVERAL
    folder = check_model(FIXTURES / "repositories/nano-gemma4")
    assert [file.name for file in graphs_of(folder)] == ["decoder_model_merged_q4.onnx", "embed_tokens_q4.onnx"]


def test_the_dtypes_are_those_of_the_package(model: Path) -> None:
    assert set(DTYPES) == set(repository.DTYPES)
    assert request(model, "x", "--dtype", "q4f16")["dtype"] == "q4f16"


def test_a_model_path_that_is_no_folder_is_refused(tmp_path: Path, model: Path) -> None:
    with pytest.raises(CommandError, match="nowhere does not exist: give a folder that"):
        check_model(tmp_path / "nowhere")
    with pytest.raises(CommandError, match=r"model.onnx is not a folder: give a folder that"):
        check_model(model / "model.onnx")
    assert check_model(model) == model


def test_two_models_of_one_name_are_refused(tmp_path: Path) -> None:
    for parent in ("a", "b"):
        (tmp_path / parent / "nano").mkdir(parents=True)
    assert mounts([tmp_path / "a/nano", tmp_path / "a/nano"]) == {"nano": tmp_path / "a/nano"}
    with pytest.raises(CommandError, match="two models are named 'nano'"):
        mounts([tmp_path / "a/nano", tmp_path / "b/nano"])


class TestModels:
    def test_the_digests_of_a_models_shards_are_written_beside_them(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = tmp_path / "nano"
        shutil.copytree(FIXTURES / "nano-llama", folder)
        args = cli.parse(["models", "shards", str(folder), "--shard-size", "100000"])
        models_command.check(args)
        assert models_command.run(args) == 0
        written = folder / "model.onnx.data.shards.json"
        assert capsys.readouterr().out == f"{written}\n"
        manifest = parse_manifest(written.read_bytes(), written.name)
        data = (folder / "model.onnx.data").read_bytes()
        assert manifest == Manifest.of([data[i : i + 100000] for i in range(0, len(data), 100000)], 100000)

    def test_a_missing_data_file_is_named(self, tmp_path: Path) -> None:
        folder = tmp_path / "nano"
        shutil.copytree(FIXTURES / "nano-llama", folder)
        (folder / "model.onnx.data").unlink()
        args = cli.parse(["models", "shards", str(folder)])
        models_command.check(args)
        with pytest.raises(CommandError, match=r"model.onnx.data does not exist, but model.onnx names it"):
            models_command.run(args)

    @pytest.mark.parametrize("size", ["0", "16777217"])
    def test_a_shard_that_cannot_be_held_is_refused(self, size: str, model: Path) -> None:
        args = cli.parse(["models", "shards", str(model), "--shard-size", size])
        with pytest.raises(CommandError, match=f"--shard-size is {size}, but must be from 1 to 16777216"):
            models_command.check(args)

    def test_an_action_is_needed(self) -> None:
        with pytest.raises(CommandError, match="ACTION"):
            cli.parse(["models"])


def test_the_weight_store_can_be_left_out(model: Path) -> None:
    assert "disable_file_mapped_weights" not in request(model, "x")
    assert request(model, "x", "--disable-file-mapped-weights")["disable_file_mapped_weights"] is True


def test_a_fleet_refuses_wrong_numbers_and_files_and_tells_of_lines_by_their_number(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.jsonl"

    def checked(*argv: str) -> argparse.Namespace:
        args = cli.parse(["fleet", str(prompts), "--model", str(model), *argv])
        fleet_command.check(args)
        return args

    with pytest.raises(CommandError, match=r"prompts\.jsonl is no file: give a file of JSON lines"):
        checked()
    prompts.write_text('{"prompt": "a"}\n{"id": 7, "messages": [{"role": "user", "content": "b"}]}\n')
    assert checked("--greedy", "--workers", "2").search == {"do_sample": False}
    assert fleet_command.checked(str(prompts)) == 2
    with pytest.raises(CommandError, match="--browsers-per-worker is 0, but must be at least 1"):
        checked("--browsers-per-worker", "0")
    with pytest.raises(CommandError, match="--scheduler and --workers were both given"):
        checked("--scheduler", "tcp://127.0.0.1:1", "--workers", "2")
    with pytest.raises(CommandError, match="model folder .*/none does not exist"):
        checked("--model", str(tmp_path / "none"))
    for line, words in {
        b'{"prompt": ': "line 2: column 12: not JSON",
        b'{"prompts": "a"}': "line 2: item 1 has prompts; give one of prompt, prompt_ids, messages",
        b'{"id": "0", "prompt": "b"}': "line 2: item 1: id '0' is that of item 0",
        b"[" * 100_000: "line 2: it is nested more than 64 levels deep",
        b'{"id": 1%s, "prompt": "b"}' % (b"0" * 5000): "line 2: it has an integer of thousands of digits",
        b'{"prompt": "\xff"}': "line 2: byte 12 is not UTF-8",
        b'{"prompt": "a\0"}': "line 2: column 14: not JSON",
        b'{"messages": [{"role": "user", "content": NaN}]}': r"line 2: item 1: messages\[0\]\.content is nan",
    }.items():
        prompts.write_bytes(b'{"prompt": "a"}\n' + line + b'\n{"prompt": "c"}\n')
        assert fleet_command.checked(str(prompts)) == 3
        assert re.search(
            f"1 of 3 lines are no items, each with an error in its result; {words}", capsys.readouterr().err
        )
    prompts.write_text("[\n]")
    with pytest.raises(CommandError, match="has no line that is an item; line 1: column 2: not JSON"):
        fleet_command.checked(str(prompts))
    prompts.write_text("")
    with pytest.raises(CommandError, match="is empty: give a line for each prompt"):
        fleet_command.checked(str(prompts))
