"""Plain local tensors out of what frameworks hand around."""

from __future__ import annotations


def is_distributed(tensor) -> bool:
    """True for a DTensor; told by name, so that torch.distributed.tensor is not imported for it."""
    return any(base.__name__ == "DTensor" for base in type(tensor).__mro__)


def plain_tensor(tensor):
    """`tensor` detached from autograd, a replicated DTensor as its local part, None for any other DTensor: making it
    whole would take a collective, and the agent never starts one."""
    if not is_distributed(tensor):
        return tensor.detach()
    if all(placement.is_replicate() for placement in tensor.placements):
        return tensor.to_local().detach()
    return None
