"""Defines the convolution of one token's vector with those of the tokens before it, which a state holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..kernel_plan import KernelPlan, WorkgroupLimits
from ..operation import ELEMENT_BYTES, Binding, Buffer, Kernel, Operation, Value
from ..ort_kernels import Met, Rules
from ..step_graph import StepGraph
from ..uniforms import Number
from ..witness import Witness
from .state_signatures import CONVOLUTIONS, SIGNATURES, STATES
from .traced import Traced

__all__ = ["RULES", "Convolution"]

WORKGROUP = 64


@dataclass(frozen=True)
class Convolution(Operation):
    """A causal convolution of each channel of reads[0] with its own `taps` weights; reads[1] is its state, the
    channel's last taps - 1 inputs. It writes the results and the new state.

    If it is `gated` (LFM2), reads[0] has three vectors: the inputs are the first times the third, and the results are
    multiplied by the second. `silu`: the results are activated.
    """

    channels: int
    taps: int
    weight: int
    """A buffer of weights, [channels, taps]; so is `bias`, [channels]."""
    bias: int | None
    past: int
    """The recorded buffer of the state, [channels, taps - 1]."""
    present: int
    """The recorded buffer of the new state."""
    element: str
    gated: bool = False
    silu: bool = False
    positions: int = 1
    """The number of successive positions that the step runs. If it is above 1, `past` keeps the state before the first
    position, and `present` gets the state after each position.
    """

    @property
    def in_place(self) -> frozenset[int]:
        return frozenset({self.past})

    @property
    def title(self) -> str:
        return f"the convolution of {self.channels} channels"

    @property
    def terms(self) -> int:
        return self.taps

    def written_bytes(self, index: int) -> int:
        return self.positions * self.channels * ELEMENT_BYTES[self.element] * ((self.taps - 1) if index else 1)

    @property
    def _constants(self) -> dict[str, int | float | bool]:
        return {"CHANNELS": self.channels, "TAPS": self.taps, "GATED": self.gated, "ACTIVATED": self.silu}

    @property
    def _workgroups(self) -> tuple[int, int, int]:
        return -(-self.channels // WORKGROUP), 1, 1

    def kernels(self, reads: Sequence[int], writes: Sequence[int], limits: WorkgroupLimits) -> list[Kernel]:
        plan = KernelPlan("convolution", {**self._constants, "POSITIONS": self.positions}, self._workgroups)
        bindings: dict[str, Binding] = {
            "x": Value(reads[0]),
            "weight": Buffer(self.weight),
            "past": Buffer(self.past),
            "y": Value(writes[0]),
        }
        if self.bias is not None:
            bindings["bias"] = Buffer(self.bias)
        if self.positions > 1:
            bindings["kept"] = Buffer(self.present)
        return [Kernel(plan, self.element == "f16", bindings)]

    def truth(self, witness: Witness, reads: Sequence[int], writes: Sequence[int]) -> None:
        """Several positions have no truth: their step is compared with steps of one."""
        if self.positions > 1:
            return
        each = ELEMENT_BYTES[self.element]
        truth = witness.truths(self.channels)
        bindings = {
            "x": witness.keep(reads[0], (3 if self.gated else 1) * self.channels * each),
            "weight": ["recorded", self.weight],
            "past": witness.keep(reads[1], self.written_bytes(1)),
            "truth": truth,
        }
        if self.bias is not None:
            bindings["bias"] = ["recorded", self.bias]
        half = self.element == "f16"
        witness.run("truth_convolution", self._constants, half, bindings, self._workgroups)
        witness.judge("result", self.element, witness.keep(writes[0], self.written_bytes(0)), truth)


def sizes(value: Number) -> tuple[int, ...]:
    """The sizes in elements of a Split's results, which are counted in vectors of four."""
    return tuple(4 * size for size in value) if isinstance(value, tuple) else ()


def convolutions_joined(graph: StepGraph, met: Mapping[int, Met]) -> StepGraph:
    """Turn a convolution and the copy of its state into one operation, with the gates around it if there are any."""
    traced = Traced(graph, met)
    for found in met.values():
        if found.kernel.kind in CONVOLUTIONS:
            join_convolution(traced, found)
    return traced.result()


def join_convolution(traced: Traced, found: Met) -> None:
    kernel, at = found.kernel, found.kernel.at
    entering = traced.maker(found.read("input"), "turned_vector")
    copy = traced.carried(at["conv_state"], found.written("present_state"))
    if entering is None or copy is None:
        return
    channels, result = kernel.number("channels"), found.written("output")
    what = Convolution(
        channels,
        kernel.number("kernel_size"),
        at["weight"],
        at.get("bias"),
        at["conv_state"],
        at["present_state"],
        kernel.element,
        silu=kernel.kind == "convolution_silu",
    )
    state = found.read("conv_state")
    gates = gated_by(traced, entering, found, channels)
    end = found
    if gates is None:
        traced.join(what, (entering.read("a"), state), (result, copy.writes[0]), entering, found)
    else:
        split, times, leaving, last = gates
        end = last
        writes = (last.written("output"), copy.writes[0])
        traced.join(
            replace(what, gated=True),
            (split.read("input"), state),
            writes,
            split,
            times,
            entering,
            found,
            leaving,
            last,
        )
    traced.drop(copy, at["present_state"], end)


def gated_by(traced: Traced, entering: Met, found: Met, channels: int) -> tuple[Met, Met, Met, Met] | None:
    """The kernels of LFM2's gates: those that split a vector in three and multiply the inputs, and those that turn and
    multiply the results.
    """
    times = traced.maker(entering.read("a"), "multiply")
    leaving = traced.reader(found.written("output"), "turned_vector")
    last = traced.reader(leaving.written("output"), "multiply") if leaving is not None else None
    if times is None or leaving is None or last is None:
        return None
    inputs = [traced.maker(times.read(name), "qkv_split") for name in ("input_a", "input_b")]
    split = inputs[0]
    if split is None or inputs[1] != split or sizes(split.kernel.uniforms["segment_sizes"]) != (channels,) * 3:
        return None
    gate = [last.read(name) for name in ("input_a", "input_b") if last.read(name) != leaving.written("output")]
    wanted = {split.written("output_0"), split.written("output_2")}
    fits = {times.read("input_a"), times.read("input_b")} == wanted and gate == [split.written("output_1")]
    return (split, times, leaving, last) if fits and traced.maker(gate[0], "qkv_split") == split else None


RULES = Rules(SIGNATURES, groups={STATES: convolutions_joined})
