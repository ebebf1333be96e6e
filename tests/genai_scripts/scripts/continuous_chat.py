"""Turns of one request over one engine: what was said stays in the cache."""

import onnxruntime_genai as og
from common import arguments, load

args = arguments("continuous chat", turns=3)
model = load(args)
tokenizer = og.Tokenizer(model)
engine = og.Engine(model)
events = engine.create_event_buffer(1)
limits = og.RequestOptions()
limits.set_max_session_tokens(128)
request = engine.create_request(options=limits)
for turn in range(args.turns):
    options = og.TurnOptions(request)
    options.set_max_generated_tokens(5)
    options.set_do_sample(False)
    number = request.begin_turn(tokenizer.encode(f"question {turn}\n"), options)
    answer = []
    while engine.has_pending_requests():
        event = engine.run(events)[0]
        if event.token is not None:
            answer.append(event.token)
    print(number, answer, event.finish_reason.name, event.usage.generated_tokens)
request.rewind_to_start_of_turn(2)
request.begin_turn(tokenizer.encode("another question\n"))
print("and then", [engine.run(events)[0].token for _ in range(4)])
request.close()
