"""Turns weights into graph inputs.

onnxruntime-web copies initializers into its heap, once for each session. As inputs they are Capstan's GPU buffers,
filled directly from the network or from disk and shared by every session. These stay initializers:

- tensors stored inside model.onnx (the model builder puts only constants there);
- external tensors that onnxruntime must see as values when it plans: integers of at most `CONSTANT_BYTES` (axes,
  shapes) and single elements. Their bytes have to be passed in; `constants_to_inline` lists them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import ModelFileError, UncomputedError, UnsupportedModelError
from ..model_files.bounded_json import clipped
from ..model_files.file_names import why_not_below
from .model_file import PARTS
from .onnx_pb2 import ModelProto, TensorProto, ValueInfoProto
from .parts import Part, parts_of, text_of
from .wiring import copy_of, delete

__all__ = [
    "CONSTANT_BYTES",
    "DTYPES",
    "WeightEntry",
    "constants_to_inline",
    "external_entries",
    "made_of",
    "require_held",
    "require_whole",
    "weights_to_inputs",
]

CONSTANT_BYTES = 1024

# ONNX type: (onnxruntime-web's name, bits an element)
DTYPES: dict[int, tuple[str, int]] = {
    TensorProto.FLOAT: ("float32", 32),
    TensorProto.FLOAT16: ("float16", 16),
    TensorProto.INT64: ("int64", 64),
    TensorProto.UINT64: ("uint64", 64),
    TensorProto.INT32: ("int32", 32),
    TensorProto.UINT32: ("uint32", 32),
    TensorProto.INT16: ("int16", 16),
    TensorProto.UINT16: ("uint16", 16),
    TensorProto.INT8: ("int8", 8),
    TensorProto.UINT8: ("uint8", 8),
    TensorProto.BOOL: ("bool", 8),
    TensorProto.INT4: ("int4", 4),
    TensorProto.UINT4: ("uint4", 4),
}

INTEGERS = (TensorProto.INT64, TensorProto.INT32)
HELD = frozenset({"float32", "float16", "int64", "int32", "uint32", "uint8", "bool", "int4", "uint4"})
"""Element types of weights that may be GPU buffers."""

MOST_BYTES = 1 << 44
"""The largest weight and weight file, 16 TiB; numbers beyond 64 bits occur in no file."""
MOST_DIMENSIONS = 16


@dataclass(frozen=True)
class WeightEntry:
    """One weight: `length` bytes of a buffer, made from parts of the file `location`, relative to model.onnx's folder.

    Without `parts` they are the bytes at `offset`.
    """

    name: str
    dims: tuple[int, ...]
    onnx_type: int
    location: str
    offset: int
    """The offset of its first part."""
    length: int
    parts: tuple[Part, ...] = ()

    @property
    def dtype(self) -> str:
        """The name that onnxruntime-web gives the element type, as in `float32`."""
        return DTYPES[self.onnx_type][0]

    @property
    def pieces(self) -> tuple[Part, ...]:
        """The parts; a weight without parts is one part."""
        return self.parts or (Part(self.offset, self.length),)

    @property
    def end(self) -> int:
        """The offset in the file after its last piece."""
        return max(part.offset + part.length for part in self.pieces)


def external_entries(model: ModelProto) -> list[WeightEntry]:
    """Every external initializer, by location, then offset.

    Raises ModelFileError for an impossible offset, length or location, UnsupportedModelError for an element type
    unknown to WebGPU.
    """
    entries = [entry_of(tensor) for tensor in model.graph.initializer if tensor.data_location == TensorProto.EXTERNAL]
    return sorted(entries, key=lambda entry: (entry.location, entry.offset, entry.name))


def known_external_entries(model: ModelProto) -> list[WeightEntry]:
    """Every external initializer, like `external_entries`, except those of element types unknown to WebGPU."""
    external = [tensor for tensor in model.graph.initializer if tensor.data_location == TensorProto.EXTERNAL]
    return [entry_of(tensor) for tensor in external if tensor.data_type in DTYPES]


def entry_of(tensor: TensorProto) -> WeightEntry:
    fields = {item.key: item.value for item in tensor.external_data}
    if tensor.data_type not in DTYPES:
        kind = str(tensor.data_type)
        if tensor.data_type in TensorProto.DataType.values():
            kind = TensorProto.DataType.Name(tensor.data_type)
        raise UnsupportedModelError(
            f"weight {tensor.name}: element type {kind} does not exist on WebGPU; export as int4, fp16 or fp32"
        )
    location = fields.get("location", "")
    why = why_not_below(location)
    if why is not None:
        raise ModelFileError(
            f"weight {clipped(tensor.name)}: its external file is {clipped(location)}, expected one below the "
            f"model's folder ({why}); export it again"
        )
    if len(tensor.dims) > MOST_DIMENSIONS or any(not 0 <= size <= MOST_BYTES for size in tensor.dims):
        raise ModelFileError(
            f"weight {clipped(tensor.name)}: its dimensions are {clipped(list(tensor.dims))}, expected at most "
            f"{MOST_DIMENSIONS}, each from 0 to {MOST_BYTES}; export the model again"
        )
    size = (math.prod(tensor.dims) * DTYPES[tensor.data_type][1] + 7) // 8
    if PARTS in fields:
        parts = parts_of(fields[PARTS])
        assert sum(part.made for part in parts) == size, tensor.name
        return WeightEntry(tensor.name, tuple(tensor.dims), tensor.data_type, location, parts[0].offset, size, parts)
    offset = byte_count(tensor.name, "offset", fields.get("offset", "0"))
    length = byte_count(tensor.name, "length", fields.get("length", str(size)))
    if length != size:
        shape = "x".join(map(str, tensor.dims)) or "scalar"
        raise ModelFileError(
            f"weight {tensor.name} has {length} bytes in {location}, expected {size} for "
            f"{DTYPES[tensor.data_type][0]} {shape}; export the model again"
        )
    return WeightEntry(tensor.name, tuple(tensor.dims), tensor.data_type, location, offset, length)


def made_of(name: str, onnx_type: int, dims: Sequence[int], location: str, parts: Sequence[Part]) -> TensorProto:
    """An external initializer whose bytes are these parts of the file; `external_entries` reads the parts back."""
    tensor = TensorProto(name=name, data_type=onnx_type, data_location=TensorProto.EXTERNAL)
    tensor.dims.extend(dims)
    for key, value in (("location", location), (PARTS, text_of(parts))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def byte_count(name: str, field: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ModelFileError(
            f"weight {name}: {field} is {text!r} in model.onnx, expected a whole number of bytes; export again"
        )
    if len(text) > len(str(MOST_BYTES)) or int(text) > MOST_BYTES:
        raise ModelFileError(
            f"weight {name}: {field} is {clipped(text)} in model.onnx, expected at most {MOST_BYTES}; export again"
        )
    return int(text)


def is_constant(entry: WeightEntry) -> bool:
    return math.prod(entry.dims) == 1 or (entry.onnx_type in INTEGERS and entry.length <= CONSTANT_BYTES)


def constants_to_inline(model: ModelProto) -> list[WeightEntry]:
    """External tensors that must stay initializers, whose bytes `weights_to_inputs` needs; often none."""
    return [entry for entry in external_entries(model) if is_constant(entry)]


def weights_to_inputs(
    model: ModelProto, constants: Mapping[str, bytes] | None = None
) -> tuple[ModelProto, list[WeightEntry]]:
    """Turn external initializers into graph inputs; return the new model and the manifest by location, then offset.

    `constants` holds the bytes of every entry of `constants_to_inline(model)`, by name; those become inline
    initializers. Raises ModelFileError for impossible entries, and for constants that are missing or of the wrong size.
    """
    given = constants or {}
    manifest: list[WeightEntry] = []
    inlined: dict[str, bytes] = {}
    for entry in external_entries(model):
        if not is_constant(entry):
            manifest.append(entry)
            continue
        data = given.get(entry.name)
        if data is None or len(data) != entry.length:
            found = "none" if data is None else str(len(data))
            raise ModelFileError(
                f"constant {entry.name}: {found} bytes of {entry.location} were given, expected {entry.length}; read "
                "the tensors that constants_to_inline lists"
            )
        inlined[entry.name] = data
    result = copy_of(model)
    graph = result.graph
    declared = {value.name for value in graph.input}
    for tensor in graph.initializer[:]:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        if tensor.name in inlined:
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = inlined[tensor.name]
        elif tensor.name not in declared:
            value = ValueInfoProto(name=tensor.name)
            value.type.tensor_type.elem_type = tensor.data_type
            for size in tensor.dims:
                value.type.tensor_type.shape.dim.add().dim_value = size
            if not tensor.dims:
                value.type.tensor_type.shape.SetInParent()
            graph.input.append(value)
    delete(graph.initializer, lambda tensor: tensor.data_location == TensorProto.EXTERNAL)
    return result, manifest


def require_whole(model: ModelProto, what: str) -> None:
    """Raise UncomputedError for the graph of a GGUF file, whose weights are rearranged while loading."""
    if any(entry.parts for entry in known_external_entries(model)):
        raise UncomputedError(
            f"{what} takes no GGUF file, since its weights are rearranged while loading; use an ONNX export of the "
            "model"
        )


def require_held(weights: Sequence[WeightEntry]) -> None:
    """Raise UncomputedError for weights that cannot be GPU buffers."""
    for entry in weights:
        if entry.dtype not in HELD:
            raise UncomputedError(
                f"weight {entry.name} is {entry.dtype}, for which onnxruntime-web takes no GPU buffer; use another "
                "dtype of the model, or use device='wasm'"
            )
