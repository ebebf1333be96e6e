"""Steps of small decoders with states, as sketches: the kernels of onnxruntime-web for LFM2 and Qwen3.5."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from tests.unit.recorded_kernels import SCALE, Number
from tests.unit.small_decoders import VOCABULARY, WIDTH, Small

__all__ = ["STATEFUL_DECODERS", "Stateful"]

TAPS = 4
KEY_HEADS, VALUE_HEADS, KEY, VALUE = 2, 4, 8, 8
KEYS, VALUES = KEY_HEADS * KEY, VALUE_HEADS * VALUE


@dataclass
class Stateful(Small):
    """A decoder under construction whose layers have states; `end` ends the step."""

    states: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By name the tensor of a state and that of the new one, which the step's end copies to the first."""

    def state(self, name: str, size: int) -> tuple[int, dict[str, int]]:
        """A state, and where a kernel puts the new one."""
        s = self.sketch
        past, present = s.lasting(size), s.lasting(size)
        s.given[past] = 0.3 * s.rng.standard_normal(size)
        self.states[name] = past, present
        return past, {"present_state": present}

    def turned(self, x: int, size: int, name: str, upright: bool = False) -> int:
        shape = (1, 1, size) if upright else (1, size, 1)
        [y] = self.sketch.run("turned_vector", {"a": x}, {"output": size}, {"a_shape": shape, "output_size": size})
        self.named(f"turned {name}")
        return y

    def convolved(self, x: int, channels: int, kind: str) -> int:
        """A convolution, between two kernels that turn a vector; `kind` is its kernel's name."""
        s = self.sketch
        past, into = self.state("convolution", channels * (TAPS - 1))
        reads = {"input": x, "weight": s.weights(channels * TAPS), "conv_state": past}
        reads |= {"bias": s.weights(channels)} if "biased" in kind else {}
        sizes = {"batch_size": 1, "channels": channels, "input_length": 1, "kernel_size": TAPS, "dilation": 1}
        [y, _] = s.run(kind, reads, {"output": channels}, {**sizes, "state_length": TAPS - 1}, into=into)
        self.named("convolution")
        return y

    def split(self, x: int, *sizes: int) -> list[int]:
        """Three parts of a vector."""
        counts: dict[str, Number] = {"input_size": sum(sizes) // 4, "total_segment_elements": sum(sizes) // 4}
        segments = tuple(size // 4 for size in sizes)
        outputs = {f"output_{place}": size for place, size in enumerate(sizes)}
        parts = self.sketch.run("qkv_split", {"input": x}, outputs, {**counts, "segment_sizes": segments})
        self.named("split")
        return parts

    def short_convolution(self, x: int) -> int:
        """LFM2's: the inputs are gated, and the results."""
        before, gate, x = self.split(self.matmul(x, 3 * WIDTH, WIDTH), WIDTH, WIDTH, WIDTH)
        entering = self.multiply(before, x, WIDTH)
        self.named("inputs")
        y = self.convolved(self.turned(entering, WIDTH, "inputs", upright=True), WIDTH, "convolution")
        y = self.multiply(gate, self.turned(y, WIDTH, "results"), WIDTH)
        self.named("results")
        return self.matmul(y, WIDTH, WIDTH)

    def unit(self, x: int, name: str) -> int:
        """The heads of q or of k, each divided by its length."""
        s = self.sketch
        gamma = s.tensor(KEY)
        s.given[gamma] = np.full(KEY, KEY**-0.5)
        sizes: dict[str, Number] = {"components": 4, "norm_count": KEY_HEADS, "norm_size": KEY, "epsilon": 1e-3}
        [y] = s.run("norm", {"x": self.turned(x, KEYS, name), "scale": gamma}, {"y": KEYS}, sizes)
        self.named(f"norm of {name}")
        return y

    def delta_net(self, x: int, scaled: bool = True) -> int:
        """Qwen3.5's linear attention, behind a convolution."""
        s = self.sketch
        z = self.silu(self.matmul(x, VALUES, WIDTH), VALUES)
        self.named("gate")
        channels = 2 * KEYS + VALUES
        entering = self.turned(self.matmul(x, channels, WIDTH), channels, "inputs", upright=True)
        q, k, v = self.split(self.convolved(entering, channels, "convolution_silu_biased"), KEYS, KEYS, VALUES)
        v = self.turned(v, VALUES, "v")
        [beta] = s.run("sigmoid", {"x": self.matmul(x, VALUE_HEADS, WIDTH)}, {"y": VALUE_HEADS}, {"vec_size": 1})
        self.named("beta")
        total = self.add(self.matmul(x, VALUE_HEADS, WIDTH), s.weights(VALUE_HEADS), VALUE_HEADS)
        self.named("bias of the decay")
        [soft] = s.run("softplus", {"x": total}, {"y": VALUE_HEADS}, {"vec_size": 1})
        decay = self.multiply(soft, s.weights(VALUE_HEADS, -1.0), VALUE_HEADS)
        self.named("rate of the decay")
        q = self.unit(q, "q")
        if scaled:
            [q] = s.run(SCALE, {"input_a": q, "input_b": s.weights(1, 0.5)}, {"output": KEYS}, {"element_count": KEYS})
        k = self.unit(k, "k")
        past, into = self.state("recurrence", VALUE_HEADS * KEY * VALUE)
        sizes: dict[str, Number] = {"batch_size": 1, "num_heads": VALUE_HEADS, "seq_length": 1, "head_dim_k": KEY}
        groups = {"heads_per_group": 0, "kv_per_k_head": 2, "q_num_heads": KEY_HEADS, "n_k_heads": KEY_HEADS}
        reads = {"query": q, "key": k, "value": v, "initial_state": past, "decay": decay, "beta": beta}
        uniforms = {**sizes, "head_dim_v": VALUE // 4, "scale": 0.5, **groups}
        [y, _] = s.run("recurrence", reads, {"output": VALUES}, uniforms, into=into)
        self.named("recurrence")
        sizes = {"components": 4, "norm_count": VALUE_HEADS, "norm_size": VALUE, "epsilon": 0.5}
        [y] = s.run("norm", {"x": y, "scale": s.weights(VALUE, 1.0)}, {"y": VALUES}, sizes)
        self.named("norm of the result")
        y = self.multiply(y, z, VALUES)
        self.named("gated")
        return self.matmul(y, WIDTH, VALUES)

    def end(self, x: int) -> Stateful:
        """Logits of x, and the new states where the next step reads them."""
        self.matmul(x, VOCABULARY, WIDTH, into=self.logits)
        for name, (past, present) in self.states.items():
            self.sketch.copy(present, past, self.sketch.sizes[past])
            self.named(f"copy of {name}")
        return self


def lfm2() -> Stateful:
    m = Stateful()
    x = m.embedded()
    return m.end(m.last_norm(m.short_convolution(m.norm(x)), x))


def qwen3_5(scaled: bool = True) -> Stateful:
    m = Stateful()
    x = m.embedded()
    return m.end(m.last_norm(m.delta_net(m.norm(x), scaled), x))


STATEFUL_DECODERS: Mapping[str, Callable[[], Stateful]] = {
    "lfm2": lfm2,
    "qwen3_5": qwen3_5,
    "qwen3_5, q as it is": lambda: qwen3_5(scaled=False),
}
