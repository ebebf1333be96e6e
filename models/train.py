"""Train the bundled decoder on one GPU, by wall time: the learning rate follows the share of --seconds that has passed.

usage: train.py TOKENS_DIR --checkpoint FILE --out DIR --seconds TOTAL --this-call SECONDS [--tiny]

A second stage, on a finished run: --weights FILE --first-token (a fresh optimizer; --peak 0.25 --hold 0). Prompts
have no <|endoftext|> before them and may end in a newline, so many of its windows start at a top-level statement,
and a few come from files where some line breaks are split from their indentation (few: those files are few, and are
learnt by heart otherwise).

TOKENS_DIR holds train.bin.xz and heldout.bin.xz (uint16, from pack_tokens.py) and tokens.json. A run that ends
before TOTAL leaves FILE; the same command goes on from there. DIR gets log.jsonl and weights.pt (float32, names as
in transformers' Llama). Llama layout: RMS norms, rotary positions, grouped-query attention, SwiGLU, separate
embedding and output matrices. Hidden matrices are trained by Muon (orthogonalised momentum), the rest by AdamW.
"""

import argparse
import json
import lzma
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    vocabulary: int = 2048
    width: int = 256
    layers: int = 5
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 64
    hidden: int = 448
    context: int = 1024
    rope_theta: float = 10000.0
    norm_epsilon: float = 1e-5


class RMSNorm(nn.Module):
    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.size(-1),), self.weight, self.epsilon)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.float().chunk(2, -1)
    return (x.float() * cos + torch.cat((-b, a), -1) * sin).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.q_proj = nn.Linear(s.width, s.heads * s.head_size, bias=False)
        self.k_proj = nn.Linear(s.width, s.kv_heads * s.head_size, bias=False)
        self.v_proj = nn.Linear(s.width, s.kv_heads * s.head_size, bias=False)
        self.o_proj = nn.Linear(s.heads * s.head_size, s.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            p(x).view(batch, length, -1, self.s.head_size).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        group = self.s.heads // self.s.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(s.width, s.hidden, bias=False)
        self.up_proj = nn.Linear(s.width, s.hidden, bias=False)
        self.down_proj = nn.Linear(s.hidden, s.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(s.width, s.norm_epsilon)
        self.self_attn = Attention(s)
        self.post_attention_layernorm = RMSNorm(s.width, s.norm_epsilon)
        self.mlp = MLP(s)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(s.vocabulary, s.width)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm = RMSNorm(s.width, s.norm_epsilon)


class Decoder(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.model = Body(s)
        self.lm_head = nn.Linear(s.width, s.vocabulary, bias=False)
        for name, p in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(p)
            elif p.dim() == 2:
                nn.init.normal_(p, std=0.02 if "lm_head" in name or "embed" in name else p.size(1) ** -0.5)
        angle = torch.outer(
            torch.arange(s.context).float(), s.rope_theta ** (-torch.arange(0, s.head_size, 2).float() / s.head_size)
        )
        self.register_buffer("cos", torch.cat((angle, angle), -1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat((angle, angle), -1).sin(), persistent=False)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of every position, in nats, shape [batch * length]."""
        x = self.model.embed_tokens(ids)
        cos, sin = self.cos[: ids.size(1)], self.sin[: ids.size(1)]
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        logits = self.lm_head(self.model.norm(x))
        return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")


def orthogonalise(g: Tensor) -> Tensor:
    """The quintic Newton-Schulz iteration on a batch of matrices [n, rows, columns]."""
    x = g.bfloat16()
    tall = x.size(-2) > x.size(-1)
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x.mT if tall else x


class Muon:
    """Momentum, orthogonalised, over matrices grouped by shape so that one batched product serves each group."""

    def __init__(self, parameters: list[nn.Parameter], compiled: bool) -> None:
        groups: dict[torch.Size, list[nn.Parameter]] = {}
        for p in parameters:
            groups.setdefault(p.shape, []).append(p)
        self.groups = list(groups.values())
        self.momentum = [torch.zeros(len(g), *g[0].shape, device=g[0].device) for g in self.groups]
        self.direction = torch.compile(self._direction, dynamic=False) if compiled else self._direction

    @staticmethod
    def _direction(momentum: Tensor, gradient: Tensor, beta: Tensor) -> Tensor:
        momentum.lerp_(gradient, 1 - beta)
        return orthogonalise(torch.lerp(gradient, momentum, beta)).float()

    @torch.no_grad()
    def step(self, rate: float, beta: Tensor, decay: float) -> None:
        for group, momentum in zip(self.groups, self.momentum, strict=True):
            update = self.direction(momentum, torch.stack([p.grad for p in group]), beta)
            scale = rate * max(1.0, group[0].size(0) / group[0].size(1)) ** 0.5
            torch._foreach_mul_(group, 1 - rate * decay)
            torch._foreach_add_(group, list(update.unbind(0)), alpha=-scale)


def load(path: Path, device: str) -> Tensor:
    values = np.frombuffer(lzma.decompress(path.read_bytes()), np.uint16)
    return torch.from_numpy(values.astype(np.int16)).to(device)


def statements(tokens: Tensor, about: dict[str, list[int]], context: int) -> Tensor:
    """Where top-level statements start."""
    table = torch.zeros(2, 1 << 15, dtype=torch.bool, device=tokens.device)
    table[0, about["newline_ids"] + [0]] = True
    table[1, about["statement_ids"]] = True
    found: list[Tensor] = []
    for at in range(1, len(tokens) - context - 1, 1 << 24):
        now = tokens[at : min(at + (1 << 24), len(tokens) - context - 1)].int()
        before = tokens[at - 1 : at - 1 + len(now)].int()
        found.append((table[0, before] & table[1, now]).nonzero()[:, 0] + at)
    return torch.cat(found)


@torch.no_grad()
def bits_per_byte(model: nn.Module, files: Tensor, starts: list[int], size: int, context: int, device: str) -> float:
    """Every held-out file from its start, in windows of `context` with half a window of left context."""
    rows: list[tuple[Tensor, int]] = []
    for begin, end in zip(starts, [*starts[1:], len(files)], strict=True):
        tokens = files[begin:end].long()  # <|endoftext|> then the file
        at = 0
        while at < len(tokens) - 1:
            left = max(0, at - context // 2) if at else 0
            chunk = tokens[left : left + context + 1]
            rows.append((functional.pad(chunk, (0, context + 1 - len(chunk))), (at - left) * 10000 + len(chunk) - 1))
            at = left + len(chunk) - 1
    total = torch.zeros((), device=device, dtype=torch.float64)
    place = torch.arange(context, device=device)
    for i in range(0, len(rows), 64):
        batch = rows[i : i + 64]
        batch = batch + batch[:1] * (64 - len(batch))
        x = torch.stack([r for r, _ in batch])
        with torch.autocast(device, torch.bfloat16):
            loss = model(x[:, :-1], x[:, 1:]).view(64, context)
        first = torch.tensor([c // 10000 for _, c in batch], device=device)[:, None]
        last = torch.tensor([c % 10000 for _, c in batch], device=device)[:, None]
        keep = (place >= first) & (place < last)
        keep[len(rows) - i :] = False
        total += loss.double()[keep].sum()
    return float(total) / math.log(2) / size


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--this-call", type=float, required=True)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--muon-rate", type=float, default=0.02)
    parser.add_argument("--adam-rate", type=float, default=0.004)
    parser.add_argument(
        "--hold", type=float, default=0.25, help="share of the time before the rate falls linearly to zero"
    )
    parser.add_argument("--peak", type=float, default=1.0, help="the highest rate, as a share of the rates above")
    parser.add_argument("--weights", type=Path, help="start from these")
    parser.add_argument("--first-token", action="store_true", help="the second stage's windows")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal on the CPU")
    args = parser.parse_args()
    call_start = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(int(time.time()) if args.checkpoint.exists() else 0)
    torch.set_float32_matmul_precision("high")
    shape = Shape(width=64, layers=2, heads=1, kv_heads=1, hidden=64, context=128) if args.tiny else Shape()
    about = json.loads((args.tokens / "tokens.json").read_text())
    train, held = load(args.tokens / "train.bin.xz", device), load(args.tokens / "heldout.bin.xz", device)
    starts = [i for i, t in enumerate(held.tolist()) if t == 0]
    raw = Decoder(shape).to(device)
    matrices = [p for n, p in raw.named_parameters() if p.dim() == 2 and "layers" in n]
    others = [p for n, p in raw.named_parameters() if not (p.dim() == 2 and "layers" in n)]
    muon = Muon(matrices, device == "cuda")
    adam = torch.optim.AdamW(others, lr=args.adam_rate, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0, fused=True)
    spent, step, seen = 0.0, 0, 0
    if args.weights:
        raw.load_state_dict(torch.load(args.weights, map_location=device)["weights"])
    if args.first_token:
        split = load(args.tokens / "broken.bin.xz", device)
        starts_whole, whole = statements(train, about, shape.context), len(train)
        train = torch.cat((train, split))
        print(len(starts_whole), "statement starts", flush=True)
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint, map_location=device)
        raw.load_state_dict(saved["weights"])
        if "adam" in saved:
            adam.load_state_dict(saved["adam"])
            muon.momentum = saved["muon"]
        spent, step, seen = saved["spent"], saved["step"], saved["seen"]
    model = torch.compile(raw) if device == "cuda" else raw
    span = torch.arange(shape.context + 1, device=device)
    log = (args.out / "log.jsonl").open("a")

    def say(**what: object) -> None:
        line = json.dumps({"elapsed": round(time.monotonic() - call_start, 1), **what})
        print(line, flush=True)
        log.write(line + "\n")
        log.flush()

    say(
        device=torch.cuda.get_device_name() if device == "cuda" else "cpu",
        parameters=sum(p.numel() for p in raw.parameters()),
        train_tokens=len(train),
        held_files=len(starts),
        shape=asdict(shape),
        resumed_at=spent,
    )
    start = time.monotonic() if device == "cpu" else None
    mean = torch.zeros((), device=device)
    since = (time.monotonic(), seen)
    while True:
        here = time.monotonic() - start if start else 0.0
        part = min(1.0, (spent + here) / args.seconds)
        if part >= 1.0 or time.monotonic() - call_start > args.this_call:
            break
        rate = args.peak * min(1.0, step / 100) * min(1.0, (1.0 - part) / (1.0 - args.hold))
        at = torch.randint(0, len(train) - shape.context - 1, (args.batch, 1), device=device)
        if args.first_token:  # of sixteen windows six start at a statement, one lies in the split files
            n, m = args.batch * 6 // 16, args.batch * 7 // 16
            at[:n, 0] = starts_whole[torch.randint(0, len(starts_whole), (n,), device=device)]
            at[n:m, 0] = torch.randint(whole, len(train) - shape.context - 1, (m - n,), device=device)
        rows = train[at + span].long()
        with torch.autocast(device, torch.bfloat16):
            loss = model(rows[:, :-1], rows[:, 1:]).mean()
        loss.backward()
        for group in adam.param_groups:
            group["lr"] = args.adam_rate * rate
        adam.step()
        muon.step(args.muon_rate * rate, torch.full((), min(0.95, 0.85 + step / 3000), device=device), 0.01)
        raw.zero_grad(set_to_none=True)
        mean.lerp_(loss.detach(), 0.02 if step > 50 else 0.5)
        step += 1
        seen += args.batch * shape.context
        if step % 20 == 0 and device == "cuda":
            torch.cuda.synchronize()  # the clock must not run ahead of the work
        if start is None and step % 20 == 0:
            start = time.monotonic()  # compilation does not count
            since = (start, seen)
        if step % (500 if device == "cuda" else 10) == 0:
            now = time.monotonic()
            say(
                step=step,
                part=round(part, 4),
                rate=round(rate, 4),
                loss=round(float(mean), 4),
                tokens_per_second=round((seen - since[1]) / (now - since[0])),
            )
            since = (now, seen)
        if step % (5000 if device == "cuda" else 30) == 0:
            say(
                step=step,
                held_out_bits_per_byte=round(
                    bits_per_byte(raw, held, starts, about["heldout_bytes"], shape.context, device), 4
                ),
            )
    spent += time.monotonic() - start if start else 0.0
    weights = {k: v.float().cpu() for k, v in raw.state_dict().items()}
    torch.save(
        {
            "weights": weights,
            "adam": adam.state_dict(),
            "muon": muon.momentum,
            "spent": spent,
            "step": step,
            "seen": seen,
        },
        args.checkpoint,
    )
    torch.save({"weights": weights, "spent": spent, "step": step, "seen": seen}, args.out / "weights.pt")
    say(
        step=step,
        tokens=seen,
        spent=round(spent, 1),
        finished=spent >= args.seconds,
        held_out_bits_per_byte=bits_per_byte(raw, held, starts, about["heldout_bytes"], shape.context, device),
    )


if __name__ == "__main__":
    main()
