"""Several requests at once, answered in turn by an engine."""

import onnxruntime_genai as og
from common import arguments, load

PROMPTS = ["def fibonacci(n):", "class A", "import os"]
args = arguments("an engine")
model = load(args, '{"engine": {"static_batching": {"max_batch_size": 4}}}')
tokenizer = og.Tokenizer(model)
engine = og.Engine(model)
events = engine.create_event_buffer(8)
requests = []
for i, prompt in enumerate(PROMPTS):
    request = engine.create_request()
    options = og.TurnOptions(request)
    options.set_max_generated_tokens(4 + 2 * i)
    request.begin_turn(tokenizer.encode(prompt), options)
    requests.append(request)
answers = [[] for _ in PROMPTS]
while engine.has_pending_requests():
    engine.run(events)
    for i in range(len(events)):
        event = events[i]
        place = next(k for k, request in enumerate(requests) if event.request is request)
        if event.flags & og.EngineEventFlags.TOKEN:
            answers[place].append(event.token)
        if event.flags & og.EngineEventFlags.TURN_FINISHED:
            usage = event.usage
            print(place, "finished:", event.finish_reason.name, usage.prompt_tokens, usage.generated_tokens)
for prompt, answer in zip(PROMPTS, answers, strict=True):
    print(repr(prompt), answer)
for request in requests:
    request.close()
