"""The precision of the forward pass."""

import torch

from moray.workers.collectives import from_any_worker


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """The autocast context for a `precision` of the config; weights stay fp32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=resolve(precision, device) == "bf16")


def agreed(precision: str, device: torch.device) -> str:
    """The precision for all workers: `bf16` if `precision` resolves to it on each, else `fp32`."""
    return (
        from_any_worker(lambda: None if resolve(precision, device) == "bf16" else "fp32") or "bf16"
    )


def resolve(precision: str, device: torch.device) -> str:
    """Resolve `auto` to `bf16` or `fp32` for a device; other values are returned as they are."""
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    capabilities = torch.cpu.get_capabilities()
    computes = capabilities.get("avx512_bf16") or capabilities.get("amx_bf16")
    return "bf16" if computes else "fp32"
