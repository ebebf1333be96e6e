"""Follows the values between recognised kernels of a recorded step, and puts one operation in their place."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from ..operation import Operation
from ..ort_kernels import Met
from ..step_graph import Node, Recorded, StepGraph

__all__ = ["Traced"]


@dataclass
class Traced:
    """A graph in which groups of recognised kernels, each of one operation, become Capstan's operations."""

    graph: StepGraph
    met: Mapping[int, Met]
    readers: Mapping[int, list[Node]] = field(init=False)
    makers: Mapping[int, Node] = field(init=False)
    joined: dict[int, Node] = field(default_factory=dict)
    """Capstan's operations, by the recorded operation in whose place they run."""
    gone: set[int] = field(default_factory=set)
    """Recorded operations that others replace."""
    unwritten: set[int] = field(default_factory=set)
    """Recorded buffers that outlived the recorded step, and that nothing writes or needs any more."""

    def __post_init__(self) -> None:
        self.readers, self.makers = self.graph.readers(), self.graph.makers()

    def of(self, node: Node | None, kinds: Collection[str]) -> Met | None:
        """The kernel of a node that stands for one recognised kernel of these kinds, and for nothing else."""
        if node is None or len(node.origins) != 1:
            return None
        found = self.met.get(next(iter(node.origins)))
        return found if found is not None and found.kernel.kind in kinds else None

    def maker(self, value: int, *kinds: str) -> Met | None:
        """The kernel of one of these kinds that makes a value, which one operation reads, and nothing after the
        step.
        """
        lasting = value in self.graph.last.values()
        return None if lasting or len(self.readers.get(value, ())) != 1 else self.of(self.makers.get(value), kinds)

    def reader(self, value: int, *kinds: str) -> Met | None:
        """The kernel of one of these kinds that is the only reader of a value, which nothing needs after the step."""
        readers = self.readers.get(value, ())
        lasting = value in self.graph.last.values()
        return self.of(readers[0], kinds) if len(readers) == 1 and not lasting else None

    def constant(self, value: int) -> int | None:
        """The recorded buffer of a value, if the step writes nothing to it."""
        buffer = self.graph.homes.get(value)
        made = {self.graph.homes.get(each) for each in self.makers}
        return buffer if buffer is not None and buffer not in made else None

    def carried(self, past: int, present: int) -> Node | None:
        """The copy of a state from the value `present`, which a kernel writes, to the recorded buffer `past`, which the
        next step reads; None if something else reads the new state.
        """
        readers = self.readers.get(present, ())
        copy = readers[0] if len(readers) == 1 else None
        # A buffer that outlives the step counts as read by what writes it.
        if (
            copy is None
            or not isinstance(copy.what, Recorded)
            or not {*copy.reads} <= {present, self.graph.first[past]}
        ):
            return None
        moved = [self.graph.homes.get(value) for value in copy.writes] == [past]
        return copy if moved and self.graph.last.get(past) == copy.writes[0] else None

    def join(self, what: Operation, reads: tuple[int, ...], writes: tuple[int, ...], *kernels: Met) -> None:
        """Let an operation run in place of these kernels, where the last one given ran."""
        end = kernels[-1].index
        origins = frozenset(each.index for each in kernels)
        self.joined[end] = Node(what, reads, writes, end, origins)
        self.gone |= origins

    def drop(self, copy: Node, present: int, end: Met) -> None:
        """Drop the copy of a state, since the operation that runs in place of `end` writes the state in place, and
        nothing writes the recorded buffer `present`.
        """
        made = self.joined[end.index]
        self.joined[end.index] = replace(made, origins=made.origins | copy.origins)
        self.gone |= copy.origins
        self.unwritten.add(present)

    def result(self) -> StepGraph:
        """The graph with the joined operations."""
        nodes = []
        for node in self.graph.nodes:
            if node.origins.isdisjoint(self.gone):
                nodes.append(node)
            elif (made := self.joined.get(max(node.origins))) is not None and made not in nodes:
                nodes.append(made)
        last = {buffer: value for buffer, value in self.graph.last.items() if buffer not in self.unwritten}
        return replace(self.graph, nodes=tuple(nodes), last=last)
