"""The GPU time that each kind of operation takes within a decode step. It runs in the page, on a GPU:

usage: python3 build.py exec benches/step_parts.py --model FOLDER -- [--length N] [--rounds N] [--without PASS,...]

The step is made as ever, then once for each kind of operation with that kind left out, and once with all of them left
out; none of these is compared with anything, for their results are wrong. Steps are timed by turns behind LENGTH (128)
tokens, 32 in a submit. A line of JSON: the microseconds of a whole step, by kind how many there are, what the step
loses without them and that for each, and what is left without all of them (the sampler and recorded operations). Alone
in a pass an operation seems longer by some 7 us, and in a chain of its own shorter: its text and tables are there.
"""

import argparse
import json
import statistics

import capstan
from capstan.device.webgpu.tapes import step_check, step_recorder, stored_tapes, verdicts
from capstan.tape import PASSES, Recorded, fused_step

STEPS = 32


async def nothing(*_):
    return None


async def no_faults(*_, **__):
    return {}


def leaving(left, seen):
    """`fused_step`, but operations of the titles `left` are not dispatched; their numbers are counted in `seen`."""

    def made(placement, *given):
        step, begin = fused_step(placement, *given), 0
        seen.clear()
        for node, end in zip(placement.nodes, step.ends, strict=True):
            if not isinstance(node.what, Recorded):
                seen[node.what.title] = seen.get(node.what.title, 0) + 1
                if node.what.title in left:
                    step.played[begin:end] = [["kernel", op[1], 0, 1, 1] for op in step.played[begin:end]]
            begin = end
        return step

    return made


async def generator_of(model, length, left, seen):
    step_recorder.fused_step = leaving(left, seen)
    params = capstan.GeneratorParams(model)
    # No token ends the sequence, whatever is picked.
    room = length + 3 * STEPS
    params.set_search_options(do_sample=False, max_length=room, min_length=room)
    params.set_speculation(None)
    generator = capstan.Generator(model, params)
    generator.append_tokens([100 + 7919 * at % (model.config.vocab_size - 200) for at in range(length)])
    await generator.prepare_async(record=True)
    # The first pick is from the prompt's logits, which are right.
    await generator.generate_next_token_async()
    return generator


async def main(folder):
    parser = argparse.ArgumentParser()
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without", default="")
    args = parser.parse_args()
    off = args.without.split(",")
    step_check.StepCheck.faults = no_faults
    step_check.StepCheck.compare = verdicts.Verdicts.read = verdicts.Verdicts.write = nothing
    stored_tapes.StoredTapes.restore = stored_tapes.StoredTapes.keep = nothing
    passes = [name for name in PASSES if name not in off]
    async with await capstan.Model.load(folder, device="webgpu", passes=passes) as model:
        seen = {}
        whole = await generator_of(model, args.length, (), seen)
        counts = dict(seen)
        ways = {"whole": whole}
        for name, left in {**{title: [title] for title in counts}, "all": list(counts)}.items():
            ways[name] = await generator_of(model, args.length, left, seen)
        found = {name: [] for name in ways}
        for _ in range(args.rounds):
            for name, generator in ways.items():
                found[name].append(1000 * await capstan.measure.gpu_step_time(generator, STEPS))
        times = {name: statistics.median(each) for name, each in found.items()}
        lost = {title: times["whole"] - times[title] for title in counts}
        told = {
            "adapter": model.adapter,
            "length": args.length,
            "us a step": round(times["whole"], 1),
            "without": {
                title: {"operations": counts[title], "us": round(us, 1), "us each": round(us / counts[title], 2)}
                for title, us in sorted(lost.items(), key=lambda each: -each[1])
            },
            "us left without all": round(times["all"], 1),
            "passes": whole.tape_passes,
        }
        print(json.dumps(told), flush=True)
        for generator in ways.values():
            await generator.aclose()


await main(next(iter(models.values())))  # noqa: F704, F821  # given to scripts of the page
