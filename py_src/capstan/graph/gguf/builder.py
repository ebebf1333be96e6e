"""Writes the ONNX graph of a GGUF file, node for node as onnxruntime-genai's model builder writes it.

    write_graph(file, gguf_decoder(file, "model.gguf"), "float16", {})    its weights are parts of model.gguf

If q, k and v are of different types, as in K mixes, the results of their matrix products are concatenated.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import groupby

from ...errors import UnsupportedModelError
from ...model_files.file_names import split_name
from ...model_files.genai_config import DecoderConfig
from ...model_files.gguf.families import family_of, require_computed
from ...model_files.gguf.gguf_file import GgufFile
from ...model_files.gguf.layers import head_sizes, layer_sizes
from ..attention_writer import Rotary
from ..onnx_pb2 import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto
from ..rotary_nodes import ComputedRows, write_rows
from ..wiring import value_info
from .experts import Experts
from .gguf_tensors import Rows, TensorWriter, node_name
from .layer_inputs import LayerInputs
from .rotary import Rotations
from .states import Convolutions, DeltaNets

__all__ = ["write_graph"]

ELEMENTS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
OPSET = 22
STATES: Mapping[str, type[Convolutions] | type[DeltaNets]] = {"convolutions": Convolutions, "delta nets": DeltaNets}
"""The writers of layers without attention, by the families' names for them."""
MICROSOFT = "com.microsoft"


def write_graph(file: GgufFile, decoder: DecoderConfig, element: str, small: Mapping[str, bytes]) -> ModelProto:
    """The graph of a file, with activations of `element`: 'float16' or 'float32'. Its weights are in the decoder's file
    beside it, or in all shards if that file is a shard.

    `small` has the bytes of the file's SMALL_TENSORS (rotary.py). Raises UnsupportedModelError for tensors and metadata
    that the graph would ignore, ConfigError for wrong metadata, ModelFileError for tensors that contradict them.
    """
    model = ModelProto(ir_version=10, producer_name="capstan")
    model.opset_import.add(domain="", version=OPSET)
    model.opset_import.add(domain=MICROSOFT, version=1)
    model.graph.name = "main_graph"
    Builder(model.graph, file, decoder, ELEMENTS[element], small).write()
    return model


class Builder:
    """The graph of one file."""

    def __init__(
        self, graph: GraphProto, file: GgufFile, decoder: DecoderConfig, element: int, small: Mapping[str, bytes]
    ) -> None:
        self.graph, self.file, self.element, self.small = graph, file, element, small
        self.family = family_of(file)
        self.t = TensorWriter(graph, file, split_name(decoder.filename)[1], element)
        assert decoder.hidden_size is not None, "gguf_decoder sets it"
        self.layers, self.hidden = decoder.num_hidden_layers, decoder.hidden_size
        self.heads = decoder.num_attention_heads
        self.sizes = layer_sizes(file, self.heads, self.hidden, self.layers)
        inner = file.key("feed_forward_length")
        by_layer = self.family.sizes_by_layer
        self.inner = (
            file.by_layer(inner, self.layers) if by_layer else [file.of_layers(inner, self.layers)] * self.layers
        )
        self.epsilon = file.real(file.key("attention.layer_norm_rms_epsilon"), above=0.0)
        self.context = file.integer(file.key("context_length"))
        self.vocabulary = file.tensors["token_embd.weight"].dims[0] if "token_embd.weight" in file.tensors else 0
        self.attentive = self.family.attentive(file, self.layers)
        """Whether each layer has attention; the others have states."""
        made = STATES.get(self.family.states)
        self.stateful = None if made is None else made(self.t, file, self.hidden, self.epsilon)
        mixture = self.family.mixture
        self.experts = None if mixture is None else Experts(self.t, file, mixture, self.hidden, self.inner[0])
        self.rotated = [self.family.rotated(file, layer) for layer in range(self.layers)]
        self.attention_cap, self.logits_cap = self.family.attention_cap(file), self.family.logits_cap(file)
        self.attention_scale = self.family.attention_scale(file, decoder.head_size)
        self.embedding_scale, self.residual_scale = self.family.embedding_scale(file), self.family.residual_scale(file)
        self.logits_scale = self.family.logits_scale(file)
        self.rotations = Rotations.of(file, self.family, *head_sizes(file, self.heads, self.hidden))
        self.own: LayerInputs | None = None
        if self.family.sizes_by_layer:
            made_inputs = LayerInputs(self.t, file, self.layers, self.hidden, self.vocabulary, self.epsilon)
            self.own = made_inputs if made_inputs.size else None
        self.empty: dict[int, str] = {}
        """Keys of no positions, by the layer whose caches others read."""
        require_computed(file)
        self.tables: dict[tuple[Rotary, ...], tuple[str, str]] = {}
        """The names of cosines and sines, by the rotary embeddings in them."""

    def write(self) -> None:
        self.declare()
        lengths = self.attention_lengths()
        embedding = self.t.tensor("token_embd.weight", self.vocabulary, self.hidden)
        x = self.t.lookup("model.embed_tokens", embedding, "input_ids")
        skip = self.scaled("/model/embed_tokens/Mul", x, self.embedding_scale)
        if self.own is not None:
            self.own.write(skip)
        normed = self.norm("layers.0.input_layernorm", skip, "blk.0.attn_norm")
        for layer in range(self.layers):
            normed, skip = self.layer(layer, normed, skip, lengths)
        output = self.t.tensor("output.weight", *embedding.dims) if self.t.has("output.weight") else embedding
        logits = self.t.product("lm_head.MatMul", normed, [Rows(output)])
        logits = self.scaled("/lm_head/Mul", logits, self.logits_scale)
        self.capped(logits)
        unused = self.family.unused(self.file, self.layers) | self.of_shared_caches()
        left = sorted(self.file.tensors.keys() - self.t.read - unused)
        if left:
            raise UnsupportedModelError(
                f"{self.file.name}: a graph of {self.file.architecture} does not use {len(left)} tensors, such as "
                f"{left[0]}; use another file of the model"
            )

    def declare(self) -> None:
        """Declare the inputs and outputs of the graph."""
        batch: tuple[str | int, ...] = ("batch_size", "sequence_length")
        cached = [layer for layer in range(self.layers) if self.attentive[layer] and self.source(layer) == layer]
        self.graph.input.append(value_info("input_ids", TensorProto.INT64, batch))
        mask = ("batch_size", "total_sequence_length")
        self.graph.input.append(value_info("attention_mask", TensorProto.INT64, mask))
        self.graph.output.append(value_info("logits", self.element, (*batch, self.vocabulary)))
        for part, layer in ((part, layer) for part in ("key", "value") for layer in cached):
            heads, head = self.sizes[layer].kv_heads, self.sizes[layer].head
            cache = ("batch_size", heads, "past_sequence_length", head)
            grown = ("batch_size", heads, "total_sequence_length", head)
            self.graph.input.append(value_info(f"past_key_values.{layer}.{part}", self.element, cache))
            self.graph.output.append(value_info(f"present.{layer}.{part}", self.element, grown))
        for kind, sizes in (self.stateful.states if self.stateful is not None else {}).items():
            for layer in (layer for layer in range(self.layers) if not self.attentive[layer]):
                state: tuple[str | int, ...] = ("batch_size", *sizes)
                self.graph.input.append(value_info(f"past.{layer}.{kind}", self.element, state))
                self.graph.output.append(value_info(f"present.{layer}.{kind}", self.element, state))

    def attention_lengths(self) -> list[str]:
        """The number of positions before the last one of each row, and the largest number of positions."""
        front = "/model/attn_mask_reformat/attn_mask_subgraph"
        whole = self.t.node("Cast", f"{front}/Cast", ["attention_mask"], to=TensorProto.INT32)
        total = self.t.node("ReduceSum", f"{front}/ReduceSum", [whole, self.t.integers(1)], keepdims=0)
        one = TensorProto(name="/model/constants/INT32/[1]", data_type=TensorProto.INT32, dims=[1])
        one.raw_data = struct.pack("<i", 1)
        self.graph.initializer.append(one)
        before = self.t.node("Sub", f"{front}/Sub", [total, one.name])
        return [before, self.t.node("ReduceMax", f"{front}/ReduceMax", [total], keepdims=0)]

    def layer(self, layer: int, x: str, skip: str, lengths: Sequence[str]) -> tuple[str, str]:
        """Write one layer; returns the normed input of the next layer, and the sum of all layers so far."""
        front, names = f"layers.{layer}", f"blk.{layer}"
        if self.attentive[layer]:
            made = self.attention(layer, x, lengths)
        else:
            assert self.stateful is not None, "a layer without attention has states"
            made = self.stateful.write(layer, x)
        mlp_norm = "pre_feedforward_layernorm" if self.family.sandwich else "post_attention_layernorm"
        made = self.norm_after(made, f"{front}.post_attention_layernorm", f"{names}.post_attention_norm")
        made = self.scaled(f"/model/{front}/residual_mul/Mul_1", made, self.residual_scale)
        x, skip = self.skip_norm(f"{front}.{mlp_norm}", skip, made, f"{names}.{self.family.mlp_norm}")
        made = self.norm_after(self.mlp(layer, x), f"{front}.post_feedforward_layernorm", f"{names}.post_ffw_norm")
        made = self.scaled(f"/model/{front}/residual_mul/Mul_2", made, self.residual_scale)
        if self.own is not None:
            skip = self.t.node("Add", f"/model/{front}/mlp/Add", [skip, made])
            made = self.own.add(layer, skip)
        scale = f"{names}.layer_output_scale.weight"
        if self.family.sizes_by_layer and self.t.has(scale):
            factor = self.t.vector(f"model.{front}.layer_scalar", [Rows(self.t.tensor(scale, 1))])
            skip = self.t.node("Mul", f"/model/{front}/layer_scalar/Mul_root", [skip, factor])
            made = self.t.node("Mul", f"/model/{front}/layer_scalar/Mul_skip", [made, factor])
        if layer + 1 == self.layers:
            name = f"layers.{layer + 1}.final_norm_layernorm"
            return self.skip_norm(name, skip, made, self.family.last_norm, last=True)
        return self.skip_norm(f"layers.{layer + 1}.input_layernorm", skip, made, f"blk.{layer + 1}.attn_norm")

    def source(self, layer: int) -> int:
        """The layer whose caches a layer reads."""
        return self.sizes[layer].source

    def attention(self, layer: int, x: str, lengths: Sequence[str]) -> str:
        front, node, sizes = f"model.layers.{layer}.attn", f"/model/layers.{layer}/attn", self.sizes[layer]
        shares = self.source(layer) != layer
        taken, gate = self.shared_heads(layer, x) if shares else self.own_heads(layer, x)
        rotated = self.rotated[layer]
        tables = [*self.angles(sizes.window), "", "", ""] if rotated else []
        if self.t.has(f"blk.{layer}.attn_sinks.weight"):
            sinks = self.t.tensor(f"blk.{layer}.attn_sinks.weight", self.heads)
            tables[-1] = self.t.vector(f"{front}.sinks", [Rows(sinks)])
        described = "present" if shares else "past_key_values"
        caches = [f"{described}.{self.source(layer)}.{part}" for part in ("key", "value")]
        attended = self.t.node(
            "GroupQueryAttention",
            f"{node}/GroupQueryAttention",
            [*taken, *caches, *lengths, *tables],
            f"{node}/GroupQueryAttention/output_0",
            *(() if shares else (f"present.{layer}.key", f"present.{layer}.value")),
            domain=MICROSOFT,
            num_heads=self.heads,
            kv_num_heads=sizes.kv_heads,
            scale=self.attention_scale,
            local_window_size=sizes.window,
            softcap=self.attention_cap,
            do_rotary=int(rotated),
            rotary_interleaved=0,
        )
        if gate:
            attended = self.t.node("Mul", f"{node}/gate/Mul", [attended, gate])
        output = self.t.tensor(f"blk.{layer}.attn_output.weight", self.hidden, self.heads * sizes.head)
        made = self.t.product(f"{front}.o_proj.MatMul", attended, [Rows(output)])
        return self.t.biased(f"{front}.o_proj", made, f"blk.{layer}.attn_output.bias", self.hidden)

    def own_heads(self, layer: int, x: str) -> tuple[list[str], str]:
        """q, k and v (or one tensor with all three, one after another), and the values of the gates of q's heads."""
        node, sizes, gated = f"/model/layers.{layer}/attn", self.sizes[layer], self.family.gated
        keys = sizes.kv_heads * sizes.head
        widths = {"q": self.heads * sizes.head * (1 + gated), "k": keys, "v": keys}
        alike = self.family.value_norm and not self.t.has(f"blk.{layer}.attn_v.weight")
        if self.family.joined:
            rows = [Rows(self.t.tensor(f"blk.{layer}.attn_qkv.weight", sum(widths.values()), self.hidden))]
        else:
            held = zip("qkk" if alike else "qkv", widths.values(), strict=True)
            rows = [self.rows(f"blk.{layer}.attn_{name}.weight", name, layer, n, self.hidden) for name, n in held]
        biases: list[Rows] = []
        if self.t.has(f"blk.{layer}.attn_q.bias"):
            biases = [self.rows(f"blk.{layer}.attn_{name}.bias", name, layer, n) for name, n in widths.items()]
        made, gate = self.packed(layer, x, rows, biases), ""
        if not self.t.has(f"blk.{layer}.attn_q_norm.weight"):
            return [made, "", ""], gate
        split = f"{node}/qkv_proj/Split"
        taken = [f"{split}/output_{place}" for place in range(3)]
        self.t.node("Split", split, [made, self.t.integers(*widths.values())], *taken, axis=-1)
        if gated:
            taken[0], gate = self.query_and_gate(layer, taken[0])
        for place, name in enumerate("qkv" if self.family.value_norm else "qk"):
            taken[place] = self.head_norm(layer, name, taken[place])
        if layer in {each.source for each in self.sizes[layer + 1 :]}:
            none = [self.t.integers(0), self.t.integers(0), self.t.integers(1)]
            self.empty[layer] = self.t.node("Slice", f"{node}/no_positions/Slice", [taken[2], *none])
        return taken, gate

    def shared_heads(self, layer: int, x: str) -> tuple[list[str], str]:
        """q, and keys and values without positions: the caches already have the keys and values of this run."""
        width = self.heads * self.sizes[layer].head
        rows = [self.rows(f"blk.{layer}.attn_q.weight", "q", layer, width, self.hidden)]
        made = self.t.product(f"model.layers.{layer}.attn.q_proj.MatMul", x, rows)
        empty = self.empty[self.source(layer)]
        return [self.head_norm(layer, "q", made), empty, empty], ""

    def of_shared_caches(self) -> set[str]:
        """The tensors of keys and values that a file also has for layers without caches of their own."""
        sharing = [layer for layer in range(self.layers) if self.source(layer) != layer]
        names = ("attn_k", "attn_v", "attn_k_norm")
        return {f"blk.{layer}.{name}.weight" for layer in sharing for name in names}

    def query_and_gate(self, layer: int, x: str) -> tuple[str, str]:
        """The queries and the values of the gates of heads that have both one after the other."""
        node, head = f"/model/layers.{layer}/attn", self.sizes[layer].head
        whole = self.t.integers(0, 0, self.heads * head)
        heads = self.t.node("Reshape", f"{node}/q_gate/Reshape", [x, self.t.integers(0, 0, self.heads, 2 * head)])
        parts = [f"{node}/q_gate/Split/output_{place}" for place in range(2)]
        self.t.node("Split", f"{node}/q_gate/Split", [heads, self.t.integers(head, head)], *parts, axis=-1)
        query, gate = (
            self.t.node("Reshape", f"{node}/{name}/Reshape", [part, whole])
            for name, part in zip(("q_proj", "gate"), parts, strict=True)
        )
        return query, self.t.node("Sigmoid", f"{node}/gate/Sigmoid", [gate])

    def packed(self, layer: int, x: str, rows: Sequence[Rows], biases: list[Rows]) -> str:
        """q, k and v side by side. If neighbours have the same type in the same file, one matrix product makes them.
        Tapes recognise attention by this arrangement.
        """
        groups = [list(group) for _, group in groupby(rows, key=lambda each: (each.tensor.type, each.tensor.shard))]
        made: list[str] = []
        for place, group in enumerate(groups):
            name = f"model.layers.{layer}.attn.qkv_proj" + (f"_{place}" if len(groups) > 1 else "")
            made.append(self.t.product(f"{name}.MatMul", x, group))
            own, biases = biases[: len(group)], biases[len(group) :]
            if own:
                made[-1] = self.t.node(
                    "Add", f"{node_name(name)}/Add", [made[-1], self.t.vector(f"{name}.Add.bias", own)]
                )
        return (
            self.t.node("Concat", f"/model/layers.{layer}/attn/qkv_proj/Concat", made, axis=-1) if made[1:] else made[0]
        )

    def rows(self, name: str, part: str, layer: int, *dims: int) -> Rows:
        """The weights or the bias of q, k or v."""
        halves = self.sizes[layer].head if self.family.neighbours and part != "v" else 0
        return Rows(self.t.tensor(name, *dims), halves)

    def head_norm(self, layer: int, name: str, x: str) -> str:
        """The norm of each head of q, k or v."""
        node, weight = f"/model/layers.{layer}/attn/{name}_norm", f"model.layers.{layer}.attn.{name}_norm.layernorm"
        head, count = self.sizes[layer].head, self.heads if name == "q" else self.sizes[layer].kv_heads
        heads = self.t.node("Reshape", f"{node}/Reshape_1", [x, self.t.integers(0, -1, head)])
        if name == "v":
            vector = self.t.numbers(1.0, head)
        else:
            tensor = self.t.tensor(f"blk.{layer}.attn_{name}_norm.weight", head)
            vector = self.t.vector(f"{weight}.weight", [Rows(tensor)])
        normed = self.t.rms_norm(f"{node}/SimplifiedLayerNormalization", heads, vector, self.epsilon)
        return self.t.node("Reshape", f"{node}/Reshape_2", [normed, self.t.integers(0, -1, count * head)])

    def mlp(self, layer: int, x: str) -> str:
        if self.experts is not None:
            return self.experts.write(layer, x)
        front, node, inner = f"model.layers.{layer}.mlp", f"/model/layers.{layer}/mlp", self.inner[layer]
        if self.family.joined:
            both = self.t.tensor(f"blk.{layer}.ffn_up.weight", 2 * inner, self.hidden)
            rows = [Rows(both, share=(place, 2)) for place in range(2)]
        else:
            tensors = (f"blk.{layer}.ffn_{name}.weight" for name in ("gate", "up"))
            rows = [Rows(self.t.tensor(name, inner, self.hidden)) for name in tensors]
        named = zip(("gate", "up"), rows, strict=True)
        gate, up = (self.t.product(f"{front}.{name}_proj.MatMul", x, [each]) for name, each in named)
        if self.family.gelu:
            active = self.t.node("Gelu", f"{node}/act_fn/FastGelu", [gate], approximate="tanh")
        else:
            name = f"{node}/act_fn/QuickGelu"
            active = self.t.node("QuickGelu", name, [gate], domain=MICROSOFT, alpha=1.0)
        gated = self.t.node("Mul", f"{node}/Mul", [active, up])
        down = self.t.tensor(f"blk.{layer}.ffn_down.weight", self.hidden, inner)
        return self.t.product(f"{front}.down_proj.MatMul", gated, [Rows(down)])

    def norm(self, name: str, x: str, tensor: str) -> str:
        weight, front = self.norm_weight(name, tensor), node_name(f"model.{name}")
        return self.t.rms_norm(f"{front}/LayerNorm", x, weight, self.epsilon, f"{front}/output_0")

    def norm_weight(self, name: str, tensor: str) -> str:
        return self.t.vector(f"model.{name}.weight", [Rows(self.t.tensor(f"{tensor}.weight", self.hidden))])

    def norm_after(self, x: str, name: str, tensor: str) -> str:
        """A tensor after the norm that follows attention or the MLP, if the family has such norms."""
        return self.norm(name, x, tensor) if self.family.sandwich else x

    def skip_norm(self, name: str, skip: str, x: str, tensor: str, last: bool = False) -> tuple[str, str]:
        """The norm of `skip` + `x`, and this sum."""
        weight, front = self.norm_weight(name, tensor), node_name(f"model.{name}")
        summed = [] if last else ["", "", f"{front}/output_3"]
        made = self.t.node(
            *("SkipSimplifiedLayerNormalization", f"{front}/SkipLayerNorm", [skip, x, weight], f"{front}/output_0"),
            *summed,
            domain=MICROSOFT,
            epsilon=self.epsilon,
        )
        return made, f"{front}/output_3"

    def scaled(self, name: str, x: str, factor: float) -> str:
        return x if factor == 1.0 else self.t.node("Mul", name, [x, self.t.number(factor)])

    def capped(self, logits: str) -> None:
        """Name the logits, and cap them in families with a cap."""
        cap = self.logits_cap
        if cap:
            divided = self.t.node("Div", "/lm_head/softcap/Div", [logits, self.t.number(cap)])
            bounded = self.t.node("Tanh", "/lm_head/softcap/Tanh", [divided])
            logits = self.t.node("Mul", "/lm_head/softcap/Mul", [bounded, self.t.number(cap)])
        maker = self.graph.node[-1]
        assert maker.output[0] == logits
        maker.output[0] = "logits"

    def angles(self, window: int) -> tuple[str, str]:
        """Cosines and sines [context, half of a head's rotated elements]. A long rope has different ones for sequences
        longer than the original length.
        """
        local = window >= 0 and self.family.local_rotation is not None
        names = self.rotations.divisor_names(local)
        ropes = [self.rotations.rotary(local, self.divisors(name, local)) for name in names or ("",)]
        key = tuple(ropes)
        if key not in self.tables:
            suffix = "" if self.family.local_rotation is None else "_local" if local else "_global"
            self.tables[key] = (f"cos_cache{suffix}", f"sin_cache{suffix}")
            if ropes[1:] and self.rotations.original < self.context:
                self.write_choice(ropes[0], ropes[1], self.tables[key])
            else:
                for name, rows in zip(self.tables[key], self.rows_of(ropes[0]), strict=True):
                    write_rows(self.graph, name, rows)
                    self.graph.value_info.append(value_info(name, self.element, [rows.rows, len(rows.frequencies)]))
        return self.tables[key]

    def divisors(self, name: str, local: bool) -> list[float]:
        half = self.rotations.dimensions(local) // 2
        if not name:
            return [1.0] * half
        self.t.tensor(name, half)
        return self.rotations.divisors(name, self.small)

    def rows_of(self, rotary: Rotary) -> list[ComputedRows]:
        """The rows of the cosines and of the sines."""
        waves = (False, True)
        return [ComputedRows(rotary.frequencies, rotary.scale, sine, self.context, self.element) for sine in waves]

    def write_choice(self, short: Rotary, long: Rotary, names: tuple[str, str]) -> None:
        """An If that chooses the long tables for a mask longer than the original length."""
        front = "/model/rotary/choice"
        shape = self.t.node("Shape", f"{front}/Shape", ["attention_mask"])
        total = self.t.node("Gather", f"{front}/Gather", [shape, self.t.integers(1)], axis=0)
        longer = self.t.node("Greater", f"{front}/Greater", [total, self.t.integers(self.rotations.original)])
        choice = NodeProto(op_type="If", name=front, input=[longer], output=names)
        for branch, rotary in (("then_branch", long), ("else_branch", short)):
            graph = GraphProto(name=branch)
            for name, rows in zip(names, self.rows_of(rotary), strict=True):
                write_rows(graph, f"{name}_{branch}", rows)
                dims = [rows.rows, len(rows.frequencies)]
                graph.output.append(value_info(f"{name}_{branch}", self.element, dims))
            choice.attribute.add(name=branch, type=AttributeProto.GRAPH, g=graph)
        self.graph.node.append(choice)
