"""Milliseconds of what a training step of GPT-2 consists of: `python -m benchmarks.gpu.kernels`.

16 rows of 1,024 tokens, in bf16. Each is timed by CUDA's events over 50 calls in a row.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from moray.tasks.language import cross_entropy

_TOKENS, _WIDTH, _HEADS, _ROWS = 16_384, 768, 12, 16
_CALLS = 50
_GPU = torch.device("cuda")


def milliseconds(call: Callable[[], object]) -> float:
    """Mean time of a call."""
    for _ in range(5):
        call()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    first.record()
    for _ in range(_CALLS):
        call()
    last.record()
    torch.cuda.synchronize()
    spent: float = first.elapsed_time(last)
    return spent / _CALLS


def main() -> None:
    """Print a line for each."""
    for title, call, flops in [*_blocks(), *_output(), *_attention(), *_others()]:
        spent = milliseconds(call)
        rate = f"{flops / spent / 1e9:6.0f} TFLOP/s" if flops else ""
        print(f"{title:58} {spent:8.3f} ms {rate}", flush=True)


_Line = tuple[str, Callable[[], object], float]


def _random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device=_GPU).to(dtype)


def _blocks() -> list[_Line]:
    lines: list[_Line] = []
    for inner, columns in ((768, 2304), (768, 768), (768, 3072), (3072, 768)):
        states, weight = _random(_TOKENS, inner), _random(columns, inner)
        slope, flops = _random(_TOKENS, columns), 2 * _TOKENS * inner * columns
        lines += [
            (f"block {inner} to {columns}", partial(F.linear, states, weight), flops),
            ("  gradient of its input", partial(torch.mm, slope, weight), flops),
            ("  gradient of its weight", partial(torch.mm, slope.T, states), flops),
        ]
    return lines


def _output() -> list[_Line]:
    lines: list[_Line] = []
    softmax = torch.compile(cross_entropy.softmax_loss)
    for vocabulary in (50_257, 50_304):
        weight = _random(vocabulary, _WIDTH)
        total = torch.zeros(vocabulary, _WIDTH, device=_GPU)
        for rows in (1024, 4096, 8192, 16_384):
            states, logits = _random(rows, _WIDTH), _random(rows, vocabulary)
            targets = torch.randint(vocabulary, (rows,), device=_GPU)
            flops = 2 * rows * vocabulary * _WIDTH
            name = f"output layer {vocabulary}, {rows} rows"
            lines += [
                (f"{name}: logits", partial(F.linear, states, weight), flops),
                ("  softmax, compiled", partial(softmax, logits, targets), 0),
                ("  gradient of its input", partial(torch.mm, logits, weight), flops),
                ("  gradient of its weight", partial(torch.mm, logits.T, states), flops),
                (
                    "  the same, added in fp32",
                    partial(cross_entropy._add_product, total, logits.T, states),
                    flops,
                ),
            ]
    return lines


def _attention() -> list[_Line]:
    from torch.nn.attention.varlen import varlen_attn

    shape = (_ROWS, _HEADS, 1024, 64)
    query, key, value = (_random(*shape).requires_grad_() for _ in range(3))
    mask = torch.ones(1024, 1024, dtype=torch.bool, device=_GPU).tril().expand(_ROWS, 1, -1, -1)

    def both(call: Callable[[], Tensor]) -> None:
        torch.autograd.backward(call().sum())

    def dense(mask: Tensor | None) -> Tensor:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None
        )

    flat = [_random(_TOKENS, _HEADS, 64).requires_grad_() for _ in range(3)]

    def packed(pieces: int) -> Tensor:
        length = 1024 // pieces
        ends = torch.arange(0, _TOKENS + 1, length, dtype=torch.int32, device=_GPU)
        output: Any = varlen_attn(
            flat[0], flat[1], flat[2], ends, ends, 1024, 1024, window_size=(-1, 0)
        )
        states: Tensor = output
        return states

    flops = 7 * _TOKENS * 1024 * _WIDTH
    return [
        ("attention, forward and backward: mask", partial(both, partial(dense, mask)), flops),
        ("  causal", partial(both, partial(dense, None)), flops),
        ("  varlen, 1 document a row", partial(both, partial(packed, 1)), flops),
        ("  varlen, 4 documents a row", partial(both, partial(packed, 4)), 0),
    ]


def _others() -> list[_Line]:
    shapes = [(50_257, _WIDTH), *[(_WIDTH, 3072), (_WIDTH, 3072), (_WIDTH, 2304)] * 12]
    weights = [torch.nn.Parameter(_random(*shape, dtype=torch.float32)) for shape in shapes]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer = torch.optim.AdamW(weights, fused=True)
    pageable = torch.zeros(_ROWS, 1024, dtype=torch.long)
    return [
        ("clipping", partial(torch.nn.utils.clip_grad_norm_, weights, 1.0), 0),
        ("AdamW", optimizer.step, 0),
        ("a batch's tokens, pageable", lambda: pageable.to(_GPU, non_blocking=True), 0),
        ("a batch's tokens, pinned", partial(_copied, pageable.pin_memory()), 0),
    ]


def _copied(tokens: Tensor) -> Tensor:
    return tokens.to(_GPU, non_blocking=True)


if __name__ == "__main__":
    main()
