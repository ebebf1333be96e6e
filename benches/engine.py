"""Tokens a second of an engine with several requests at once. It runs in the page:

usage: python3 build.py exec benches/engine.py --model FOLDER -- [--requests 1,2,4,8,16] [--prompt N] [--tokens N]

Each line of JSON: how many requests there were, milliseconds until each had its first token, tokens a second of all
requests together after that, how often that is of a single request's, and whether every request got the ids that it
gets alone. Requests begin together; the first run of each number, which records the step, is left out.
"""

import argparse
import json
import time

import onnxruntime_genai as og


def answered(model, prompts, tokens):
    """Milliseconds to the first tokens and from there on, and the ids of each request."""
    engine = og.Engine(model)
    requests = []
    began = time.perf_counter()
    for prompt in prompts:
        request = engine.create_request()
        options = og.TurnOptions(request)
        options.set_do_sample(False)
        options.set_max_generated_tokens(tokens)
        request.begin_turn(prompt, options)
        requests.append(request)
    found = {id(request): [] for request in requests}
    events = engine.create_event_buffer(len(requests))
    first = None
    while engine.has_pending_requests():
        for event in engine.run(events):
            if event.token is not None:
                found[id(event.request)].append(event.token)
        first = first or time.perf_counter()
    ended = time.perf_counter()
    for request in requests:
        request.close()
    return 1e3 * (first - began), 1e3 * (ended - first), [found[id(request)] for request in requests]


def main(folder):
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", default="1,2,4,8,16")
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=96)
    args = parser.parse_args()
    config = og.Config(folder)
    length = args.prompt + args.tokens + 8
    config.overlay(json.dumps({"search": {"max_length": length}, "model": {"eos_token_id": []}}))
    model = og.Model(config)
    numbers = [int(number) for number in args.requests.split(",")]
    vocabulary = model.capstan.config.vocab_size
    prompts = [
        [100 + (7919 * (place + 1000 * number)) % (vocabulary - 200) for place in range(args.prompt)]
        for number in range(max(numbers))
    ]
    alone, single = {}, None
    for number in numbers:
        for _ in range(2):
            first, rest, ids = answered(model, prompts[:number], args.tokens)
        for place in range(number):
            if place not in alone:
                alone[place] = answered(model, [prompts[place]], args.tokens)[2][0]
        speed = 1e3 * number * (args.tokens - 1) / rest
        single = single or speed
        same = sum(found == alone[place] for place, found in enumerate(ids))
        told = {"requests": number, "ms to the first tokens": round(first, 2), "tokens/s": round(speed, 1)}
        print(json.dumps({**told, "times": round(speed / single, 2), "same ids": f"{same} of {number}"}), flush=True)


main(next(iter(models.values())))  # noqa: F821  # given to scripts of the page
