"""Runs in the page, started by docs/pictures/tape.py: prints a decode step as it was recorded and as it is played.

The output is JSON.
"""

import json

import capstan
from capstan.device.webgpu.tapes import step_recorder
from capstan.tape.ops import RULES
from capstan.tape.ort_kernels import recognise
from capstan.tape.recording import Clear, Copy, Dispatch, DispatchIndirect
from capstan.tape.step_graph import Recorded

SIGNATURES = [signature for rules in RULES for signature in rules.signatures]
COMMANDS = {Dispatch: "dispatch", DispatchIndirect: "indirect dispatch", Copy: "copy", Clear: "clear"}
fuse = step_recorder.fuse_step
seen = {}


def named(recording, op, uploaded):
    """The kind of a recorded command, else the names that its kernel binds."""
    found = recognise(recording, op, uploaded, SIGNATURES)
    if found is not None:
        return found[0].kind
    if isinstance(op, Dispatch | DispatchIndirect):
        return " ".join(recording.pipelines[op.pipeline].names.values())
    return COMMANDS[type(op)]


def watched(recording, ops, *rest):
    placement = fuse(recording, ops, *rest)
    uploaded = recording.uploaded()
    seen["recorded"] = [{"kind": named(recording, op, uploaded), "command": COMMANDS[type(op)]} for op in ops]
    seen["played"] = [
        {"kind": None if isinstance(node.what, Recorded) else node.what.title, "of": sorted(node.origins)}
        for node in placement.nodes
    ]
    return placement


step_recorder.fuse_step = watched
(folder,) = models.values()  # noqa: F821  # `models` is given by the page
async with (
    await capstan.Model.load(folder, device="webgpu", disable_file_mapped_weights=True) as model,
    capstan.Generator(model) as generator,
):
    generator.append_tokens([5, 6, 7])
    await generator.prepare_async(record=True)
    await generator.generate_next_token_async()
    print(json.dumps({**seen, "capture": generator.capture, "passes": generator.tape_passes, "adapter": model.adapter}))
