"""No module imports upward, no circle, imports inside functions only for a reason, JavaScript only in `_js` and `page`.

The rules, which `problems` applies to the sources without importing them; imports for type checkers count, too:

- A module imports modules of rooms in its own layer or in a lower one (LAYERS), and within its package of its own floor
  or of a lower one (FLOORS).
- No modules import one another in a circle, nor do rooms; buildtools and web have no circle either.
- In web, what runs in a page and what runs in the worker meet in web/src/wire alone (THREADS).
- An import inside a function is in INSIDE_FUNCTIONS, with its reason, but for those of commands: they are read before
  there is an environment.
- `capstan`, which runs in a page, does not import `capstan_host`, which drives pages from CPython.
- Only `_js` and `page` import `js`, `pyodide`, and the page's object `_capstan_host`.

`python3 tests/unit/test_layers.py [FOLDER]` prints how many modules and circles there are, of another checkout's
py_src/capstan if that is given.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from buildtools import ROOT
from buildtools.imports import HOST, both_packages, imports, sources, typescript_imports

SOURCES = ROOT / "py_src" / "capstan"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "fallback", "signatures"),
    ("graph", "guidance", "memory", "model_files", "picture", "sound", "stages", "text"),
    ("host",),
    ("tape", "weights"),
    ("device",),
    ("loading",),
    ("_js", "local"),
    ("onnxruntime",),
    ("adapters", "embeddings", "generation", "measure", "model", "notebook", "speech", "tokenizer"),
    ("genai", "page"),
    ("capstan",),
    ("capstan_host",),
)
"""Rooms of the package `capstan`, which are its folders and the modules at its root, lowest layer first; above all,
the package `capstan_host`."""

FLOORS: dict[str, tuple[str, ...]] = {
    "_js": (
        "coding js_errors own_host page_tokens wasm_session",
        "engine_calls onnx_sessions page_storage",
        "page_gpu_engine",
        "host_calls",
        "files",
        "page_host start",
    ),
    "capstan_host": (
        "command_errors headless places terminal",
        "fleet locks machine model_arguments piped testing trace",
        "chat_model digests evaluation model_folder",
        "site_server",
        "speech terminal_conversation",
        "speaking",
        "commands",
        "cli",
    ),
    "capstan_host.commands": ("exec fleet models run serve", "chat"),
    "capstan_host.evaluation": ("runners task_data", "lm_eval_model", "__main__"),
    "capstan_host.fleet": ("in_page items", "browsers results", "worker", "dispatch", "fleet_client"),
    "capstan_host.headless": ("chromium served_files site_folder", "static_server", "headless_page"),
    "capstan_host.testing": ("answers genai_oracle harness timing", "oracles", "tested_model", "pages", "plugin"),
    "device": (
        "cache_rows casts device_interface element_types shortlist snapshots",
        "carried_tensor lora_file noted_graphs ort_session probe span_checks",
        "host_memory lora_weights model_memory rope_tables run_input run_inputs",
        "picture_encoder row_interface speech_encoder",
        "beam_interface model_interface prefix_cache",
        "device_host host_sampled separate_rows",
        "reference wasm webgpu",
    ),
    "device.reference": (
        "cpu_operations reference_device reference_session unpacked",
        "reference_sequence",
        "reference_model",
    ),
    "device.wasm": ("cpu_graph cpu_program wasm_device", "program_places wasm_model", "program_planner"),
    "device.webgpu": (
        "gpu_engine",
        "cache_spans gpu_waits prefill_chunk prefill_pace row_logits sequence_buffers sliding webgpu_graphs "
        "weight_lease",
        "rehearsal row_buffers session_weights",
        "row_sampler",
        "tapes",
        "beam_steps drafted_steps packed_prompts sampled_rows scored_runs webgpu_session",
        "layered_session prompt_runs",
        "webgpu_device",
        "decoder",
        "joint_row loaded_model",
        "joint_rows",
        "rows step_source",
        "row_source",
        "webgpu_model",
        "lora_model",
    ),
    "device.webgpu.tapes": (
        "comparison decode_step stored_tapes tape_making tape_scratch verdicts",
        "prefill_tapes row_tapes session_tapes step_check",
        "beam_tapes draft_tapes pack_tapes step_recorder",
    ),
    "genai": (
        "changed_config chat_tools events genai_tensors log media_files runtime speculative",
        "last_run token_texts",
        "multimodal_processor",
        "genai_model",
        "genai_tokenizer params refused request",
        "genai_engine genai_generator",
    ),
    "generation": (
        "answer beam_search picture_prompt processors prompt replay run_ahead run_options speculation step_counts "
        "token_times",
        "chat_prompt generator_params named_processors policy row",
        "flight hearing seeing",
        "loop",
        "row_loop row_pool",
        "plain_policy",
        "beam_policy grammar_policy processor_policy speculation_policy",
        "generated_rows token_scores",
        "generator",
        "conversation scored_pairs",
    ),
    "graph": (
        "onnx_pb2",
        "model_file parts wiring",
        "carried node_writer slices weight_inputs weight_ranges",
        "one_node rotary_nodes total_length",
        "attention_writer",
        "activation_memory capture fed_lengths float_islands inline_weights joined_products last_token "
        "logits_to_keep long_rope lora_inputs nbits_products norms_apart plain_attention plain_norms "
        "plain_recurrence pooling quantized_caches quantized_products session_initializers sliding_caches soft_caps "
        "speech_decoder spliced_embedding text_positions turned_weights uncomputed wide_products",
        "encoder_layers whole_attention whole_layers",
        "merged_decoder",
        "moonshine_decoder",
        "angle_tables float_experts gguf split_caches split_weights unpacked_weights",
        "description",
        "rewriting",
        "graph_passes",
    ),
    "graph.gguf": ("gguf_types", "gguf_tensors rotary", "experts layer_inputs states", "builder"),
    "guidance": (
        "grammar schema_keywords string_formats",
        "byte_graph character_classes dfa json_text merging vocabulary",
        "json_numbers left_recursion nfa",
        "automaton",
        "json_members masks regex",
        "json_strings scanner x_guidance",
        "schemas",
        "json_schema",
        "ebnf lark",
        "guidance_request",
        "constraint",
    ),
    "host": ("disk_file leaving ready_results spans storage_interface", "load_times notes retrying tracing"),
    "loading": (
        "found_model load_options repository",
        "gguf_folder graphs_beside picture_repository speech_repository",
        "folder",
        "opening planning",
    ),
    "local": ("data_file file_lock numpy_token_walks rust_tokenizer", "local_host"),
    "memory": ("bookkeeping info", "pools span", "fit usage", "compatibility copies", "given"),
    "model_files": (
        "bounded_json file_names model_types",
        "config_section",
        "session_settings",
        "genai_config hub",
        "gguf known_models",
        "model_facts",
    ),
    "model_files.gguf": ("gguf_file pre_tokenizers", "families header", "gguf_tokenizer layers shards", "gguf_config"),
    "onnxruntime": (
        "host_array providers session_options",
        "checks ort_value requirements session_placement",
        "open_session",
        "io_binding",
        "captured",
        "inference_session",
        "layered_run",
        "not_finite",
    ),
    "page": (
        "loaded_one requests",
        "adapter_requests chat_answers embedding_requests inspection memory_requests read_request "
        "transcription_requests voice_requests",
        "score_requests text_events",
        "completion",
        "page_session",
        "answers",
        "request_handler",
    ),
    "picture": ("picture_file picture_places", "picture_processor", "tiled_processor"),
    "sound": ("resampling spectrum wave_file", "sound_file", "sound_processor", "waveform"),
    "speech": (
        "caption phonemes segments speech_tokens utterances",
        "speech_detector voice_model",
        "transcription_run voice",
        "listener",
        "transcriber",
    ),
    "stages": (
        "option",
        "float_arithmetic stage",
        "weight",
        "bad_words guided logit_bias max_time min_length min_p no_repeat_ngram repetition_penalty selection "
        "speculation_options stop_strings stop_token_ids timestamps token_penalties",
        "program",
        "search",
        "sampling",
    ),
    "tape": (
        "kernel_plan key recording uniforms witness",
        "operation passes",
        "step_graph",
        "ort_kernels placement watched_step",
        "ops",
        "as_recorded fused_step fusions row_step",
        "encoder_run prefill_graph",
    ),
    "tape.ops": (
        "attention_plan elementwise gemv_dense gemv_int4 matrix_tiling packed",
        "attention attention_signatures few_rows norm prefill_attention",
        "gemv normed_rows",
        "attention_recorded gemv_joins lookup",
        "beside encoder_attention gemv_recorded matmul_matrices position_row",
        "matmul",
        "gated_products minima",
    ),
    "text": (
        "call_values chat_template expressions messages python_spelling stream",
        "call_forms searches",
        "answer_formats tokenizer_limits",
        "answer_reader call_grammar call_history",
        "chat_prompts",
    ),
    "weights": ("manifest shared whole_hash", "records", "store", "idle", "weight_file"),
}
"""The modules and packages inside each package, lowest floor first."""

INSIDE_FUNCTIONS = {
    ("_js.page_tokens", "pyodide.ffi"): "tests drive the page's tokenizer on CPython, over Node",
    ("local.local_host", "device.reference.reference_device"): "numpy and onnxruntime are in the extra `reference`",
    ("local.local_host", "device.reference.reference_model"): "numpy and onnxruntime are in the extra `reference`",
    ("local.local_host", "local.numpy_token_walks"): "numpy is in the extra `reference`",
    ("capstan_host.evaluation.runners", "distributed"): "in the extra `fleet`; browsers of one machine do without",
    ("capstan_host.evaluation.runners", "capstan_host.fleet.fleet_client"): "distributed is in the extra `fleet`",
    (
        "capstan_host.fleet",
        "capstan_host.fleet.fleet_client",
    ): "distributed is in the extra `fleet`; a worker's half does without",
    (
        "genai.multimodal_processor",
        "generation.picture_prompt",
    ): "Pillow is in the extra `reference`, and fetched by pages that see",
    (
        "genai.multimodal_processor",
        "sound.sound_processor",
    ): "numpy is in the extra `reference`, and fetched by pages that hear",
    ("generation.chat_prompt", "generation.picture_prompt"): "Pillow, as in genai.multimodal_processor",
    ("loading.opening", "device.speech_encoder"): "for models that hear only",
    ("loading.planning", "device.speech_encoder"): "for models that hear only",
    ("loading.opening", "loading.graphs_beside"): "for models that hear or see only",
    ("loading.planning", "loading.graphs_beside"): "for models that see only",
    ("model", "onnxruntime.layered_run"): "protobuf is in the extra `reference`",
    ("model", "onnxruntime.not_finite"): "protobuf is in the extra `reference`",
    ("onnxruntime.checks", "ctypes"): "for who binds several arrays only",
    ("page.answers", "page.embedding_requests"): "for pages that embed texts only",
    ("page.chat_answers", "picture.picture_file"): "Pillow, as in genai.multimodal_processor",
    ("page.answers", "page.transcription_requests"): "for pages that hear only",
    ("page.answers", "page.voice_requests"): "for pages that speak only",
    ("page.read_request", "difflib"): "for an unknown field only",
    (
        "loading.folder",
        "loading.speech_repository",
    ): "protobuf, as in loading.folder, for models that hear",
    ("loading.folder", "graph"): "protobuf is in the extra `reference`, and needed for repositories only",
    ("loading.gguf_folder", "graph.gguf.builder"): "protobuf, as in loading.folder, for GGUF files",
    ("loading.gguf_folder", "graph.gguf.rotary"): "protobuf, as in loading.folder, for GGUF files",
    ("local.local_host", "graph"): "protobuf is in the extra `reference`",
    ("local.rust_tokenizer", "tokenizers"): "in the extra `reference`",
    ("capstan_host.testing.oracles", "capstan_host.testing.genai_oracle"): "onnxruntime-genai is installed apart",
    (
        "capstan_host.testing.plugin",
        "playwright.sync_api",
    ): "in the extra `testing`; a pytest plugin is imported by each run",
    ("capstan_host.testing.plugin", "capstan_host.testing.pages"): "Playwright is in the extra `testing`",
    ("sound.sound_file", "soundfile"): "in the extra `reference`",
    ("speech.transcriber", "sound.sound_processor"): "numpy, as in genai.multimodal_processor",
    ("speech.transcriber", "sound.waveform"): "numpy, as in genai.multimodal_processor",
    ("speech.transcriber", "speech.listener"): "numpy, as in genai.multimodal_processor",
    ("speech.transcriber", "speech.speech_detector"): "numpy, as in genai.multimodal_processor",
    ("speech.transcription_run", "sound.sound_processor"): "numpy, as in genai.multimodal_processor",
    ("speech.transcription_run", "sound.waveform"): "numpy, as in genai.multimodal_processor",
    ("speech.transcription_run", "device.speech_encoder"): "for models that hear only",
    ("speech.voice", "speech.voice_model"): "protobuf is in the extra `reference`",
    ("text.chat_prompts", "text.chat_template"): "jinja2 takes long to import, and is for chat templates only",
}
JAVASCRIPT = ("js", "pyodide", "pyodide_js", "_capstan_host")


def room_of(name: str) -> str:
    """The room of a module: a folder of the package, or a module at its root."""
    return name.split(".")[0]


def layer_of(name: str) -> int | None:
    """The layer of a module's room; None if it is in none."""
    return next((i for i, layer in enumerate(LAYERS) if room_of(name) in layer), None)


def floor_of(package: str, name: str) -> int | None:
    """The floor of a module or package in its package; None if it is on none."""
    return next((floor for floor, names in enumerate(FLOORS.get(package, ())) if name in names.split()), None)


def is_of_commands(name: str) -> bool:
    """Whether a module is among the commands of `capstan_host` or what they share, at its root."""
    package = name.rpartition(".")[0]
    return package == f"{HOST}.commands" or (package == HOST and name not in FLOORS)


def in_one_package(name: str, target: str) -> Iterator[tuple[str, str, str]]:
    """The packages that have both a module and one that it imports, each with what leads to the two."""
    one, other = name.split("."), target.split(".")
    for depth in range(1, min(len(one), len(other))):
        if one[:depth] != other[:depth]:
            return
        if one[depth] != other[depth]:
            yield ".".join(one[:depth]), one[depth], other[depth]


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """One circle, its first name again at the end; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = list(reversed(error.args[1]))
        return found
    return []


def problems(modules: Mapping[str, str]) -> list[str]:
    """Everything that breaks a rule, and reasons for imports that are not made any more."""
    found = [f"{name} is in no layer; name it in LAYERS" for name in modules if layer_of(name) is None]
    for name in modules:
        package, _, own = name.rpartition(".")
        if package and floor_of(package, own) is None:
            found.append(f"{name} is on no floor of {package}; name it in FLOORS")
    if found:
        return found
    graph: dict[str, set[str]] = {name: set() for name in modules}
    rooms: dict[str, set[str]] = {}
    reasons_used = set()
    for name, text in modules.items():
        for item in imports(name, text, modules):
            where = f"{name}, line {item.line}: "
            if item.inside:
                reasons_used.add((name, item.target))
                if (name, item.target) not in INSIDE_FUNCTIONS and not is_of_commands(name):
                    found.append(f"{where}{item.target} is imported inside a function; import it at the top")
            if item.target.split(".")[0] in JAVASCRIPT and not item.ours and name.split(".")[0] not in ("_js", "page"):
                found.append(f"{where}{item.target} is for _js and page only")
            if not item.ours:
                continue
            if item.target not in modules:
                found.append(f"{where}there is no module {item.target}")
                continue
            if (layer_of(item.target) or 0) > (layer_of(name) or 0):
                found.append(f"{where}{item.target} is in a higher layer")
            for package, own, other in in_one_package(name, item.target):
                if (floor_of(package, other) or 0) > (floor_of(package, own) or 0):
                    found.append(f"{where}{item.target} is on a higher floor of {package}")
            if item.target != name:
                graph[name].add(item.target)
                if room_of(name) != room_of(item.target):
                    rooms.setdefault(room_of(name), set()).add(room_of(item.target))
    for kind, edges in (("modules", graph), ("rooms", rooms)):
        if around := circle(edges):
            found.append(f"{kind} import one another: {' -> '.join(around)}")
    for module, target in INSIDE_FUNCTIONS.keys() - reasons_used:
        if module in modules:
            found.append(f"{module} does not import {target} inside a function any more; take it off the list")
    return found


def test_both_packages_keep_their_layers() -> None:
    found = problems(both_packages())
    assert not found, "\n".join(found)


def test_every_room_and_floor_exists() -> None:
    modules = both_packages()
    floors = [f"{package}.{name}" for package, floors in FLOORS.items() for floor in floors for name in floor.split()]
    for named in ([room for layer in LAYERS for room in layer], floors):
        assert [name for name in named if name not in modules] == []
        assert len(set(named)) == len(named)


def within(folder: str) -> dict[str, set[str]]:
    """The imports of each module of a package from that package."""
    modules = sources(ROOT / folder)
    whole = Path(folder).name
    return {
        name: {item.target for item in imports(name, text, modules, whole) if item.ours} - {name}
        for name, text in modules.items()
    }


def build_tools() -> dict[str, set[str]]:
    """The imports of each module of buildtools."""
    return within("buildtools")


def page_modules() -> dict[str, set[str]]:
    """The imports of each TypeScript file of web/."""
    return typescript_imports(ROOT / "web")


@pytest.mark.parametrize("read", [build_tools, page_modules])
def test_there_is_no_circle(read: Callable[[], dict[str, set[str]]]) -> None:
    graph = read()
    assert circle(graph) == []
    assert sum(map(len, graph.values())) > len(graph), "imports are found"


THREADS = {
    "src/page": {"src/wire"},
    "src/chat": {"src/page", "src/wire"},
    "src/worker": {"src/wire"},
    "src/wire": set[str](),
    "demo": {"src/page", "src/chat", "src/wire"},
    "harness": {"src/page", "src/wire"},
}
"""Folders of web, and those whose modules each may import; only src/worker runs in the worker."""


def crossings(modules: Mapping[str, set[str]]) -> list[str]:
    """Each import that the row of its folder in THREADS does not allow."""
    folder = {name: next((each for each in THREADS if name.startswith(f"{each}/")), "") for name in modules}
    return [
        f"{name} imports {target}"
        for name, targets in sorted(modules.items())
        for target in sorted(targets)
        if folder[name] and folder[target] not in {folder[name], *THREADS[folder[name]]}
    ]


def test_page_and_worker_meet_on_the_wire() -> None:
    modules = page_modules()
    assert {
        f"src/{Path(name).parts[1]}" for name in modules if name.startswith("src/") and not name.endswith(".d.ts")
    } <= THREADS.keys()
    assert crossings(modules) == []
    found = crossings({**modules, "src/page/run.ts": {"src/worker/ort.ts"}, "src/worker/ort.ts": {"src/page/run.ts"}})
    assert found == ["src/page/run.ts imports src/worker/ort.ts", "src/worker/ort.ts imports src/page/run.ts"]


def with_changes(changes: Mapping[str, str]) -> list[str]:
    """The problems of a package whose modules are empty but for these and the imports inside functions."""
    modules = dict.fromkeys(both_packages(), "")
    for module, target in INSIDE_FUNCTIONS:
        inside = target.split(".")[0] in modules and not target.startswith(HOST)
        modules[module] += f"def f():\n    import {'capstan.' * inside + target}\n"
    return problems({**modules, **changes})


@pytest.mark.parametrize(
    ("module", "text", "told"),
    [
        ("stages.search", "from ..model import Model", "stages.search, line 1: model is in a higher layer"),
        ("stages.search", "import capstan.model", "stages.search, line 1: model is in a higher layer"),
        ("stages.search", "from capstan import model", "stages.search, line 1: model is in a higher layer"),
        (
            "memory.span",
            "if TYPE_CHECKING:\n    from ..host import Host",
            "memory.span, line 2: host is in a higher layer",
        ),
        ("embeddings", "import capstan_host.fleet", "embeddings, line 1: capstan_host.fleet is in a higher layer"),
        ("embeddings", "from capstan_host import fleet", "embeddings, line 1: capstan_host.fleet is in a higher layer"),
        (
            "capstan_host.fleet.items",
            "from .worker import Worker\nfrom capstan.modell import Model",
            "capstan_host.fleet.items, line 1: capstan_host.fleet.worker is on a higher floor of capstan_host.fleet\n"
            "capstan_host.fleet.items, line 2: there is no module modell",
        ),
        ("capstan_host.commands.run", "def f():\n    import json", ""),
        ("_js.host_calls", "from .. import page", "_js.host_calls, line 1: page is in a higher layer"),
        ("generation.row", "from ..modell import Model", "generation.row, line 1: there is no module modell"),
        (
            "tape.key",
            "class A:\n    def f():\n        from .. import host",
            "tape.key, line 3: host is imported inside a function; import it at the top",
        ),
        (
            "tape.key",
            "def f():\n    import json",
            "tape.key, line 2: json is imported inside a function; import it at the top",
        ),
        (
            "tape.key",
            "from . import passes",
            "tape.key, line 1: tape.passes is on a higher floor of tape",
        ),
        (
            "device.model_interface",
            "if TYPE_CHECKING:\n    from .webgpu.webgpu_model import WebGpuModel",
            "device.model_interface, line 2: device.webgpu.webgpu_model is on a higher floor of device",
        ),
        ("tape.strange", "", "tape.strange is on no floor of tape; name it in FLOORS"),
        ("measure", "import pyodide.ffi", "measure, line 1: pyodide.ffi is for _js and page only"),
        (
            "device.wasm.cpu_graph",
            "from js import fetch",
            "device.wasm.cpu_graph, line 1: js is for _js and page only",
        ),
        ("strange", "", "strange is in no layer; name it in LAYERS"),
        (
            "local.rust_tokenizer",
            "import tokenizers",
            "local.rust_tokenizer does not import tokenizers inside a function any more; take it off the list",
        ),
    ],
)
def test_what_breaks_a_rule_is_told(module: str, text: str, told: str) -> None:
    assert with_changes({module: text}) == told.splitlines()


@pytest.mark.parametrize(
    ("changes", "kind", "around"),
    [
        (
            {
                "tape.recording": "from . import key",
                "tape.key": "if TYPE_CHECKING:\n    from .recording import Recording",
            },
            "modules",
            "tape.key tape.recording",
        ),
        (
            {"graph.carried": "from ..model_files.genai_config import x", "model_files.hub": "from ..graph import y"},
            "rooms",
            "graph model_files",
        ),
    ],
)
def test_a_circle_is_told(changes: Mapping[str, str], kind: str, around: str) -> None:
    (found,) = with_changes(changes)
    what, circle_found = found.split(" import one another: ")
    assert what == kind
    assert set(circle_found.split(" -> ")) == set(around.split())


def counts(folder: Path) -> str:
    """How many modules a package has, at its root too, and how many of them import one another in circles."""
    modules = sources(folder)
    graph = {
        name: {item.target for item in imports(name, text, modules) if item.ours and item.target in modules} - {name}
        for name, text in modules.items()
    }
    rooms = {name.split(".")[0] for name in modules if "." in name}
    root = [name for name in modules if "." not in name and name not in rooms and name != folder.name]
    around = 0
    while names := circle(graph):
        around += 1
        graph[names[0]].discard(names[1])
    return f"{len(modules)} modules, {len(rooms)} rooms, {len(root)} at the root, {around} imports that close circles"


if __name__ == "__main__":
    print(counts(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCES))
