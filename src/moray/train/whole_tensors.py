"""Steps of optimizers that need whole tensors, wherever these are sharded."""

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate


@torch.no_grad()
def step_whole(optimizer: torch.optim.Optimizer, kind: type[torch.optim.Optimizer]) -> None:
    """Take a step, parameter by parameter, each by an optimizer of a class of PyTorch's.

    What is sharded is gathered, with its gradient and state. All workers compute its step, and each
    keeps its shard.
    """
    for group in optimizer.param_groups:
        settings = {key: value for key, value in group.items() if key != "params"}
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = optimizer.state[parameter]
            whole = nn.Parameter(_gather(parameter.detach()))
            whole.grad = _gather(parameter.grad)
            one = kind([{**settings, "params": [whole]}])  # type: ignore[call-arg]
            one.state[whole] = {key: _gather(value) for key, value in state.items()}
            one.step()
            _keep_shard(parameter, whole.detach())
            for key, value in one.state[whole].items():
                _keep_shard(state[key], value)


def _gather(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _keep_shard(tensor: Tensor, whole: Tensor) -> None:
    """Set a tensor to this worker's shard of a whole one; others were stepped in place."""
    if isinstance(tensor, DTensor):
        mesh = tensor.device_mesh
        copies = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
        shard = copies.redistribute(placements=tensor.placements)
        tensor.to_local().copy_(shard.to_local())
