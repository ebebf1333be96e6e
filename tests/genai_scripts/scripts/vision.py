"""Reads two pictures, and goes on with a prompt without one."""

import struct
import zlib

import onnxruntime_genai as og
from common import arguments, load


def picture(width, height, turn):
    """The bytes of a PNG file: a gradient of two colours over squares."""

    def pixel(x, y):
        square = 255 * ((x // 7 + y // 5) % 2)
        colours = (255 * x // width, 255 * y // height, square)
        return bytes(colours[(place + turn) % 3] for place in range(3))

    rows = b"".join(b"\0" + b"".join(pixel(x, y) for x in range(width)) for y in range(height))
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    ]
    found = b"\x89PNG\r\n\x1a\n"
    for kind, content in chunks:
        found += struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    return found


args = arguments("questions about pictures", prompt="<bos><start_of_image>What is this?")
model = load(args)
processor = model.create_multimodal_processor()
print(model.type)
for prompt, files in (args.prompt, [picture(80, 50, 0)]), (args.prompt, [picture(33, 64, 1)]), ("<bos>No picture.", []):
    inputs = processor(prompt, images=og.Images.open_bytes(*files)) if files else processor(prompt)
    for name in sorted(inputs.keys()):
        print(name, inputs[name].shape())
    if files:
        values = inputs["pixel_values"].as_numpy()
        print(
            [round(float(value), 5) for value in values.reshape(-1)[::997]], inputs["token_type_ids"].as_numpy().sum()
        )
    params = og.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=640)
    generator = og.Generator(model, params)
    generator.set_inputs(inputs)
    for _ in range(20):
        generator.generate_next_token()
    print(generator.get_sequence(0).tolist()[-20:])
