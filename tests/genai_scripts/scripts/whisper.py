"""Speech to text: greedy, beams, and a batch of sounds."""

import math
import struct

import onnxruntime_genai as og
from common import arguments, load


def tone(start, end, seconds=2.0, rate=16000):
    """The bytes of a WAV file: a tone whose pitch goes from `start` to `end` Hz."""
    samples = []
    for place in range(int(seconds * rate)):
        time = place / rate
        angle = 2 * math.pi * (start * time + (end - start) * time * time / (2 * seconds))
        samples.append(round(12000 * math.sin(angle)))
    data = struct.pack(f"<{len(samples)}h", *samples)
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    head = struct.pack("<4sI4s", b"RIFF", 36 + len(data), b"WAVE") + form
    return head + struct.pack("<4sI", b"data", len(data)) + data


args = arguments("speech to text", prompt="<|startoftranscript|><|en|><|transcribe|><|notimestamps|>")
model = load(args)
processor = model.create_multimodal_processor()
print(model.type)
sounds = [tone(300, 2400), tone(2000, 100)]
for files, beams in (sounds[:1], 1), (sounds[1:], 1), (sounds[:1], 4), (sounds, 1), (sounds, 2):
    inputs = processor([args.prompt] * len(files), audios=og.Audios.open_bytes(*files))
    print(sorted(inputs.keys()), inputs["audio_features"].shape(), inputs["input_ids"].shape())
    params = og.GeneratorParams(model)
    params.set_search_options(do_sample=False, num_beams=beams, max_length=40, batch_size=len(files))
    generator = og.Generator(model, params)
    generator.set_inputs(inputs)
    while not generator.is_done():
        generator.generate_next_token()
    for row in range(len(files)):
        print(generator.get_sequence(row).tolist())
