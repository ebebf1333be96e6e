"""Reads the options of a decoder's sessions and of their execution providers from genai_config.json."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from .config_section import Section

__all__ = [
    "GraphCapture",
    "disables_store",
    "graph_capture",
    "kv_cache_bits",
    "listed_providers",
    "qdq_accuracy",
    "rope_joined_at",
    "unused_options",
]

# Known options of the decoder's sessions: logging, threads, memory arenas and the CPU fallback, which change no result.
# Capstan itself decides whether to validate.
SESSION_OPTIONS = set(
    "log_id log_severity_level log_verbosity_level enable_profiling intra_op_num_threads inter_op_num_threads "  # noqa: SIM905
    "enable_cpu_mem_arena enable_mem_pattern disable_cpu_ep_fallback use_env_allocators graph_optimization_level "
    "provider_options session.qdq_matmulnbits_accuracy_level session.disable_file_mapped_weights".split()
)
QDQ_ACCURACY = "session.qdq_matmulnbits_accuracy_level"
LONG_ROPE = "multiRotaryCacheConcatOffset"
DISABLE_STORE = "disable_file_mapped_weights"
CAPTURE = "enableGraphCapture"
CACHE_BITS = "kvCacheQuantizationBits"
WEBGPU = ("webgpu", "webgpuexecutionprovider")
PROVIDERS = (*WEBGPU, "cpu", "cpuexecutionprovider")
WEBGPU_OPTIONS = {DISABLE_STORE, CAPTURE, "validationMode", LONG_ROPE, CACHE_BITS}
BUFFERS = "Capstan plans buffers itself"
BROWSERS = "the browser decides it"
UNUSED = {
    **dict.fromkeys(("deviceId", "dawnBackendType", "preserveDevice", "enablePIXCapture"), BROWSERS),
    **dict.fromkeys(("dawnProcTable", "webgpuInstance", "webgpuDevice"), "a page has no such pointer"),
    **dict.fromkeys((f"{kind}BufferCacheMode" for kind in ("storage", "uniform", "queryResolve", "default")), BUFFERS),
    "powerPreference": "a page asks for the GPU of high performance",
    "maxNumPendingDispatches": "the tape sends whole steps",
    "maxStorageBufferBindingSize": "the limit is the adapter's",
    "forceCpuNodeNames": "all nodes of a decode step run on the GPU",
    "preferredLayout": "onnxruntime-web's own default stays",
    "custom_ops_library": "a page loads no native library",
}
"""Options of native configurations that have no effect here, with the reasons."""


@dataclass(frozen=True)
class GraphCapture:
    """Whether a configuration requests graph capture."""

    on: bool
    where: str
    """The option's JSON path, with the file."""


def webgpu_options(session_options: Section) -> list[Section]:
    """The sections of `provider_options` for WebGPU; those for other providers are for other runtimes."""
    return provider_options(session_options, WEBGPU)


def provider_options(session_options: Section, providers: Collection[str]) -> list[Section]:
    """The sections of `provider_options` for some providers."""
    listed = listed_providers(session_options)
    return [item.section(name) for item in listed for name in item.value if name.lower() in providers]


def listed_providers(session_options: Section) -> list[Section]:
    """The elements of `provider_options`, each with providers by name."""
    value = session_options.value.get("provider_options", [])
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise session_options.error("provider_options", "an array of objects")
    path = f"{session_options.path}.provider_options"
    return [Section(session_options.file, f"{path}[{i}]", item) for i, item in enumerate(value)]


def unused_options(session_options: Section) -> tuple[str, ...]:
    """The session options, and WebGPU's options, that have no effect: path and reason of each."""
    sections = [(session_options, SESSION_OPTIONS)]
    sections += [(options, WEBGPU_OPTIONS) for options in webgpu_options(session_options)]
    return tuple(
        f"{section.path}.{name} ({UNUSED.get(name, 'unknown to Capstan')})"
        for section, known in sections
        for name in section.value
        if name not in known
    )


def disables_store(session_options: Section) -> bool:
    """Whether the session's options, or those of a page's provider, turn off the browser's storage."""
    given = False
    for options in provider_options(session_options, PROVIDERS):
        given = switched(options, DISABLE_STORE, given)
    return given or switched(session_options, f"session.{DISABLE_STORE}", False)


def graph_capture(session_options: Section) -> GraphCapture | None:
    """Reads enableGraphCapture from WebGPU's options; the last value counts. Raises ConfigError."""
    found = None
    for options in webgpu_options(session_options):
        if CAPTURE in options.value:
            found = GraphCapture(switched(options, CAPTURE, False), options.where(CAPTURE))
    return found


def kv_cache_bits(session_options: Section) -> int:
    """Reads kvCacheQuantizationBits from WebGPU's options; the last value counts. Raises ConfigError."""
    found = 0
    for options in webgpu_options(session_options):
        value = options.value.get(CACHE_BITS, str(found))
        if value not in ("0", "4", "8"):
            raise options.error(CACHE_BITS, '"0", "4" or "8"', "set it to one of these, or leave it out")
        found = int(value)
    return found


def switched(section: Section, name: str, default: bool) -> bool:
    """An option that is "0" or "1". Raises ConfigError for others."""
    value = section.value.get(name, "1" if default else "0")
    if value not in ("0", "1") or not isinstance(value, str):
        raise section.error(name, '"0" or "1"', "set it to one of these, or leave it out")
    return value == "1"


def qdq_accuracy(session_options: Section) -> int:
    value = session_options.value.get(QDQ_ACCURACY, "0")
    if str(value) not in ("0", "1", "2", "3", "4"):
        raise session_options.error(QDQ_ACCURACY, "a level from 0 to 4")
    return int(value)


def rope_joined_at(decoder: Section) -> int:
    """The first row of a model's rotary tables that is made with the long factors; 0 if the model has one kind of
    factors.
    """
    found = 0
    for options in webgpu_options(decoder.section("session_options", optional=True)):
        value = options.value.get(LONG_ROPE, str(found))
        if not str(value).isdecimal():
            raise options.error(LONG_ROPE, "a number of positions")
        found = int(value)
    return found
