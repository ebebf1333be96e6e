"""Complete the twenty prompts with onnxruntime-genai on the CPU and count how many outputs parse.

usage: sample.py MODEL_DIR [--out models/samples]

Each prompt is completed twice: greedily, and sampled with temperature 0.6, top-p 0.95 and a fixed seed; 96 new
tokens at most. "Parses up to the last complete statement": cut prompt + completion at each line break from the end;
the first cut, and no earlier than the end of the prompt's last line, whose text is accepted by ast.parse is the
last complete statement's end. The output counts when such a cut exists and leaves at least one whole line that the
model wrote.
"""

import argparse
import ast
import json
import warnings
from pathlib import Path

import onnxruntime_genai as og

NEW_TOKENS = 96
MODES = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 0, "random_seed": 7},
}


def parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def accepted_lines(prompt: str, completion: str) -> int:
    """How many whole lines of the completion stand in the longest prefix, cut at a line break, that parses; 0: none."""
    text = prompt + completion
    whole = text.split("\n")[:-1]  # the last line may be cut short
    first = prompt.count("\n") + 1
    for end in range(len(whole), first - 1, -1):
        kept = whole[first - 1 : end]
        if parses("\n".join(whole[:end]) + "\n"):
            wrote = "\n".join(kept)[len(prompt.rsplit("\n", 1)[-1]) :]
            return sum(bool(line.strip()) for line in wrote.split("\n"))
    return 0


def complete(model: og.Model, tokenizer: og.Tokenizer, prompt: str, options: dict[str, object]) -> str:
    ids = tokenizer.encode(prompt)
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=len(ids) + NEW_TOKENS, **options)
    generator = og.Generator(model, params)
    generator.append_tokens(ids)
    while not generator.is_done():
        generator.generate_next_token()
    new = [int(t) for t in generator.get_sequence(0)][len(ids) :]
    return tokenizer.decode([t for t in new if t != 0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "samples")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    config = og.Config(str(args.model))
    config.clear_providers()  # the folder asks for WebGPU; this runs it on the CPU
    model = og.Model(config)
    tokenizer = og.Tokenizer(model)
    prompts = json.loads((args.out / "prompts.json").read_text())
    sections, shares = [], {}
    for mode, options in MODES.items():
        results = []
        for prompt in prompts:
            completion = complete(model, tokenizer, prompt, options)
            lines = accepted_lines(prompt, completion)
            results.append({"prompt": prompt, "completion": completion, "accepted_lines": lines})
        shares[mode] = sum(r["accepted_lines"] > 0 for r in results)
        (args.out / f"{mode}.json").write_text(json.dumps(results, indent=1) + "\n")
        for i, r in enumerate(results, 1):
            verdict = f"{r['accepted_lines']} lines parse" if r["accepted_lines"] else "does not parse"
            sections.append(f"### {mode} {i}: {verdict}\n\n```python\n{r['prompt']}⟶{r['completion'].rstrip()}\n```\n")
    head = [
        "# Twenty prompts and what the bundled model writes",
        "",
        f"Written by `models/sample.py`, which says what counts as parsing. {NEW_TOKENS} new tokens at most; "
        "⟶ marks the end of the prompt.",
        "",
    ]
    head += [
        f"- {mode}: `ast.parse` accepts {count} of {len(prompts)} ({count / len(prompts):.0%}) "
        "up to the last complete statement."
        for mode, count in shares.items()
    ]
    (args.out / "README.md").write_text("\n".join([*head, "", *sections]))
    print("\n".join(head[4:]))


if __name__ == "__main__":
    main()
