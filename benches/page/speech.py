"""Capstan's half of speech.html, in its worker: the parts of the time from samples to text.

argv: OPTIONS (JSON: name of the model, device, language, rounds). The sound is sound.wav; JSON is printed.
"""

import json
import sys
import time

import capstan
from capstan import measure
from capstan.speech.transcription_run import TranscriptionRun


async def parts(transcriber, samples, language, stamped):
    """Milliseconds of the features, the encoder, the first token and each token after it."""
    speech, began = transcriber._speech, time.perf_counter()
    run = TranscriptionRun(speech, samples, language, "transcribe", timestamps=stamped)
    features = run._features(run._sound.window(0))
    found = {"features_ms": 1e3 * (time.perf_counter() - began)}
    began = time.perf_counter()
    async with speech.encoder.heard(features) as heard:
        # It is done when a byte of it can be read.
        device, some = speech.model.device, next(iter(heard.values())).span
        await device.copy_device_to_cpu(some.buffer.span(0, 4))
    found["encoder_ms"] = 1e3 * (time.perf_counter() - began)
    picked = []
    async with speech.generator(stamped) as generator:
        began = time.perf_counter()
        await run._begin(generator, 0, stamped)
        async for _ in generator:
            picked.append(time.perf_counter())
        found["capture"] = generator.capture
        ids = generator.get_sequence()
    rest = (picked[-1] - picked[0]) / max(1, len(picked) - 1)
    return {**found, "first_ms": 1e3 * (picked[0] - began), "token_ms": 1e3 * rest, "tokens": len(picked), "ids": ids}


async def step(transcriber, samples, language):
    """The GPU's time for a decode step, in milliseconds, and for each of its dispatches, in microseconds."""
    speech = transcriber._speech
    run = TranscriptionRun(speech, samples, language, "transcribe", timestamps=False)
    async with speech.generator(stamped=False) as generator:
        await run._begin(generator, 0, stamped=False)
        # A burst of several tokens could reach the end.
        await generator.generate_next_token_async()
        dispatches = [[each.label, round(each.microseconds, 2)] for each in await measure.operations(generator)]
        return {"gpu_step_ms": await measure.gpu_step_time(generator), "dispatches": dispatches}


async def main(name, device, language, rounds):
    began = time.perf_counter()
    capture = "tape" if device == "webgpu" else "off"
    model = await capstan.Model.load(f"/models/{name}/", device=device, capture=capture)
    transcriber = capstan.Transcriber(model)
    await transcriber.prepare_async()
    found = {"load_ms": 1e3 * (time.perf_counter() - began), "adapter": model.adapter}
    samples = transcriber._samples("sound.wav")
    for number in range(rounds + 1):
        for kind in ("greedy", "timestamps"):
            made = await parts(transcriber, samples, language, kind == "timestamps")
            if number:
                found.setdefault(kind, []).append(made)
    if device == "webgpu":
        found |= await step(transcriber, samples, language)
    await model.aclose()
    print(json.dumps(found))


await main(**json.loads(sys.argv[1]))  # noqa: F704  # scripts of the page may await
