"""A chat: each turn is appended to the conversation so far, which is not run again."""

import json

import onnxruntime_genai as og
from common import arguments, load

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
args = arguments("chat", max_new_tokens=12)
model = load(args)
tokenizer = og.Tokenizer(model)
stream = tokenizer.create_stream()
params = og.GeneratorParams(model)
params.set_search_options(max_length=256)
generator = og.Generator(model, params)

system = tokenizer.apply_chat_template(
    messages=json.dumps([{"role": "system", "content": "You are a helpful assistant."}]),
    template_str=TEMPLATE,
    add_generation_prompt=False,
)
generator.append_tokens(tokenizer.encode(system))
while True:
    try:
        text = input("Prompt (quit ends): ")
    except EOFError:
        break
    if text == "quit":
        break
    if not text:
        print("the prompt is empty")
        continue
    messages = json.dumps([{"role": "user", "content": text}])
    prompt = tokenizer.apply_chat_template(messages, template_str=TEMPLATE, add_generation_prompt=True)
    # The last picked token is not in the native cache yet: append it again.
    length = generator.token_count()
    last = generator.get_sequence(0)[-1:]
    generator.rewind_to(length - 1)
    generator.append_tokens([*last, *tokenizer.encode(prompt)])
    print("Output:", end=" ")
    for _ in range(args.max_new_tokens):
        if generator.is_done():
            break
        generator.generate_next_token()
        print(repr(stream.decode(generator.get_next_tokens()[0])), end="", flush=True)
    print(f"\n{generator.token_count() - length} further tokens")
print("goodbye")
