"""`build.py run` and `exec` as a user calls them: a process, its streams and its exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import wave
from pathlib import Path

import pytest

from buildtools import ROOT
from capstan import Model, Transcriber
from capstan.model_files.gguf.header import GgmlType
from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import Harness
from tests.gguf_models import FURTHER, make, write
from tests.sounds import glide, wave_file
from tests.trace_format import slices_by_track
from tests.voices import make_voice, native_samples

NANO = ROOT / "tests/fixtures/nano-llama"
KEYS = {
    "text",
    "token_ids",
    "prompt_ids",
    "finish_reason",
    "device",
    "adapter",
    "capture",
    "capture_note",
    "tokens_per_second",
    "time_to_first_token_ms",
    "counters",
    "speculation",
}
COUNTERS = {
    "steps",
    "submits",
    "readbacks",
    "readback_bytes",
    "create_buffer",
    "create_bind_group",
    "write_buffer",
    "python_crossings",
}
SECONDS = 240
ENDED_S = 60


def build_py(*argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "build.py"), *argv],
        env={**os.environ, "CAPSTAN_ADAPTER": "software", **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def test_run_ends_with_the_json_that_is_promised() -> None:
    asked = ("run", "--prompt-ids", "3,4,5", "--model", str(NANO), "--greedy", "--max-new-tokens", "6", "--json")
    done = build_py(*asked, "--device", "webgpu")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result.keys() >= KEYS
    assert result["counters"].keys() >= COUNTERS
    assert result["prompt_ids"] == [3, 4, 5]
    assert len(result["token_ids"]) == 6
    assert (result["finish_reason"], result["device"]) == ("length", "webgpu")
    assert (result["capture"], result["capture_note"]) == ("tape", None)
    streamed = done.stdout.removesuffix(done.stdout.splitlines()[-1] + "\n")
    assert streamed.rstrip("\n") == result["text"].rstrip("\n")
    assert done.stderr.splitlines()[-1].startswith("nano-llama, 0.2 MB: 6 tokens, ")


def test_a_speech_model_writes_captions_of_a_sound(tmp_path: Path) -> None:
    folder, sound = ROOT / "tests/fixtures/speech/nano-whisper", tmp_path / "a sound.wav"
    data = wave_file(glide(0.5))
    sound.write_bytes(data)
    done = build_py("run", str(sound), "--model", str(folder), "--vtt", "--language", "en")
    assert done.returncode == 0, done.stderr
    assert done.stdout == Transcriber(Model(str(folder))).transcribe(data, language="en", timestamps=True).vtt()
    sound.write_bytes(data[:-9])
    done = build_py("run", str(sound), "--model", str(folder))
    assert done.returncode == 2
    assert "the sound is truncated: it announces 16000 bytes of samples" in done.stderr


@pytest.mark.extended
def test_a_model_that_speaks_writes_a_sound(tmp_path: Path) -> None:
    folder, sound = make_voice(tmp_path / "kokoro"), tmp_path / "a sound.wav"
    done = build_py("run", "Hello world!", "--model", str(folder), "--out", str(sound), "--speed", "0.5")
    assert done.returncode == 0, done.stderr
    with wave.open(str(sound)) as file:
        assert file.getnframes() == len(native_samples(folder, "həlˈO wˈɜɹld!", "af_heart", 0.5))
    done = build_py("run", "Hello!", "--model", str(folder), "--voice", "af_none")
    assert done.returncode == 2
    assert "voice is 'af_none'; " in done.stderr


@pytest.mark.extended
def test_a_traced_run_leaves_the_whole_trace_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("an earlier one")
    asked = ("run", "--prompt-ids", "3,4,5", "--model", str(NANO), "--max-new-tokens", "6", "--device", "webgpu")
    done = build_py(*asked, "--trace", str(path))
    assert done.returncode == 0, done.stderr
    trace = json.loads(path.read_text())
    slices = slices_by_track(trace)
    assert {"load", "Python", "submit", "wait", "copy", "GPU"} <= slices.keys()
    names = {each["name"] for found in slices.values() for each in found}
    assert {"start the worker", "load the model", "record and check the decode step", "burst"} <= names
    count = sum(map(len, slices.values()))
    said = f"trace: {count} spans in {path}; open it in Perfetto (ui.perfetto.dev)"
    assert said in done.stderr.splitlines()
    assert [each.name for each in tmp_path.iterdir()] == ["trace.json"]


@pytest.mark.extended
def test_a_run_that_fails_is_traced_and_a_trace_without_a_gpu_says_so(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    done = build_py("run", "--prompt-ids", "999999", "--model", str(NANO), "--device", "wasm", "--trace", str(path))
    assert done.returncode == 2
    assert "999999" in done.stderr.splitlines()[-1]
    assert "; no GPU times: nothing was replayed on a GPU; open it in" in done.stderr.splitlines()[-2]
    assert "load the model" in {each["name"] for each in slices_by_track(json.loads(path.read_text()))["load"]}


@pytest.mark.extended
def test_an_error_of_the_engine_is_one_line_and_status_2() -> None:
    done = build_py("run", "--prompt-ids", "999999", "--model", str(NANO))
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "999999" in errors[0]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.extended
def test_a_script_gets_its_arguments_and_models_and_gives_its_status(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, os, capstan\n"
        "print(sys.argv[1:], os.path.basename(sys.argv[0]))\n"
        "print('model type:', capstan.Model('/models/nano-llama').type)\n"
        "print('to stderr', file=sys.stderr)\n"
        "sys.exit(7)\n"
    )
    done = build_py("exec", str(script), "--model", str(NANO), "--", "-x", "y z")
    assert (done.returncode, done.stdout) == (7, "['-x', 'y z'] script.py\nmodel type: llama\n"), done.stderr
    assert "to stderr" in done.stderr


@pytest.mark.extended
def test_a_script_imports_its_files_reads_its_input_and_loads_models_by_path(tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    (tmp_path / "common/names.py").write_text("name = 'from another file'\n")
    (tmp_path / "models").symlink_to(NANO.parent)
    (tmp_path / "main.py").write_text(
        "import os, shutil, sys\n"
        "import onnxruntime_genai as og\n"
        "from common.names import name\n"
        "print(name, open(__file__).readline().strip(), [input('> '), sys.stdin.readline()])\n"
        "folder = 'models/nano-llama'\n"
        "print(sorted(os.listdir(folder))[0], os.path.getsize(folder + '/model.onnx.data'))\n"
        "shutil.copytree(folder, 'copy')\n"
        "for path in (folder, os.path.abspath(folder), 'copy/'):\n"
        "    print(og.Model(path).type, og.Tokenizer(path).encode('def f'))\n"
        "try: input()\n"
        "except EOFError: print('the end')\n"
    )
    command = [sys.executable, str(ROOT / "build.py"), "exec", "main.py", "--file", "common", "--model"]
    done = subprocess.run(
        [*command, "models/nano-llama"], cwd=tmp_path, input="a\nb\n", capture_output=True, text=True, timeout=300
    )
    size = (NANO / "model.onnx.data").stat().st_size
    assert done.stdout.splitlines() == [
        "> from another file import os, shutil, sys ['a', 'b\\n']",
        f"genai_config.json {size}",
        *["llama [299 268]"] * 3,
        "the end",
    ], done.stderr


@pytest.mark.extended
def test_a_script_loads_a_gguf_file_by_name_and_by_path(tmp_path: Path) -> None:
    further = {key: value for key, value in FURTHER["llama"].items() if key != "block_count"}
    made = make("llama", {"": GgmlType.Q8_0}, {**further, "block_count": 1}, vocabulary=512)
    write(made, tmp_path / "files/a model.gguf")
    (tmp_path / "main.py").write_text(
        "import onnxruntime_genai as og\n"
        "for path in (models['a model.gguf'], 'files/a model.gguf'):\n"
        "    print(og.Model(path).type)\n"
    )
    command = [sys.executable, str(ROOT / "build.py"), "exec", "main.py", "--model", "files/a model.gguf"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    assert done.stdout.splitlines() == ["llama"] * 2, done.stderr


@pytest.mark.extended
def test_an_uncaught_exception_shows_the_scripts_own_traceback(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("def f():\n    raise ValueError('from the script')\n\nf()\n")
    done = build_py("exec", str(script))
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ValueError: from the script")
    assert "line 2, in f" in done.stderr


@pytest.mark.extended
def test_a_script_that_opens_what_was_not_given_is_told_what_it_sees(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import onnxruntime_genai as og\nog.Model('elsewhere/model')\n")
    done = build_py("exec", str(script), "--model", str(NANO))
    assert done.returncode == 1
    told = "a script sees only the models and files that --model and --file name; name the missing one, too"
    assert done.stderr.splitlines()[-1] == told


def test_a_browser_that_is_missing_is_one_line(tmp_path: Path) -> None:
    done = build_py("run", "x", "--model", str(NANO), CAPSTAN_BROWSER=str(tmp_path / "chrome"))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"error: CAPSTAN_BROWSER={tmp_path}/chrome is not a program")


def descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid for child in children for pid in (int(child), *descendants(int(child)))]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.one_in(2)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("to", ["the process", "the terminal's group"])
def test_ctrl_c_ends_everything_with_status_130(to: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('running', flush=True)\nwhile True: pass\n")
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "build.py"), "exec", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell's background job, such as a CI step, ignores SIGINT, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        env={**os.environ, "CAPSTAN_ADAPTER": "software"},
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "running\n"
        children = descendants(process.pid)
        assert len(children) > 3
        if to == "the process":
            process.send_signal(signal.SIGINT)
        else:
            os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == 130
    assert error.splitlines()[-1] == "interrupted"
    # The browser's processes end by themselves once what drove them is gone.
    deadline = time.monotonic() + ENDED_S
    while left := [pid for pid in children if is_running(pid)]:
        assert time.monotonic() < deadline, f"still there after {ENDED_S} s: {left}"
        time.sleep(0.1)


@pytest.mark.extended
def test_serve_offers_the_page_isolated_and_a_taken_port_is_one_line(site: SiteServer) -> None:
    port = str(site.server_address[1])
    done = build_py("serve", "--port", port, "--model", str(NANO))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"error: port {port} on 127.0.0.1 is taken: ")


@pytest.mark.extended
def test_the_harness_page_is_isolated_and_reaches_no_other_origin(harness: Harness, site: SiteServer) -> None:
    assert harness.evaluate("() => crossOriginIsolated") is True
    names = harness.evaluate("() => performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert names
    assert [name for name in names if not name.startswith(site.url)] == []
    assert harness.errors == []
