"""Tools in the prompt; the example of the native package gives tools="" where there are none."""

import json

import onnxruntime_genai as og
from common import arguments, load

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"city": "string"}}}]
TEMPLATE = (
    "{% if tools %}[tools]{% for tool in tools %}{{ tool['name'] }}({{ tool['parameters'] | tojson }}){% endfor %}"
    "[/tools]\n{% endif %}"
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
args = arguments("call tools")
model = load(args)
tokenizer = og.Tokenizer(model)
messages = json.dumps([{"role": "user", "content": "What is the weather in Paris?"}])
for tools in (json.dumps(TOOLS), "", None):
    try:
        prompt = tokenizer.apply_chat_template(
            messages=messages, tools=tools, add_generation_prompt=True, template_str=TEMPLATE
        )
    except Exception as error:
        print("no template:", type(error).__name__)
        prompt = messages
    print(repr(prompt))
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=len(tokenizer.encode(prompt)) + 6)
    generator = og.Generator(model, params)
    generator.append_tokens(tokenizer.encode(prompt))
    while not generator.is_done():
        generator.generate_next_token()
    print(generator.get_sequence(0)[-6:].tolist())
print("special", tokenizer.to_token_id("<s>") == tokenizer.bos_token_id, tokenizer.eos_token_ids.tolist())
