"""Registering an op with torch: its schema, its kernels by device, and what autograd does with it."""

from collections.abc import Callable
from typing import Any

import torch

NAMESPACE = "rest_triton"
_library = torch.library.Library(NAMESPACE, "DEF")


def define(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> torch._ops.OpOverload:
    """Define ``rest_triton::schema``. ``kernel`` runs on CPU and on GPU; where arguments lie on both (a table in pinned
    memory), torch dispatches to the GPU. ``fake`` says shape, dtype and device of the result."""
    name = schema.split("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, kernel, "CPU")
    _library.impl(name, kernel, "CUDA")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def differentiate(op: torch._ops.OpOverload, setup_context: Callable[..., None], backward: Callable[..., Any]) -> None:
    """Give an op without side effects its backward."""
    torch.library.register_autograd(op.name(), backward, setup_context=setup_context, lib=_library)


def mutate(op: torch._ops.OpOverload, autograd: Callable[..., Any]) -> None:
    """Tell autograd about an op that writes into its arguments.

    ``torch.library.register_autograd`` takes functional ops only, so the two dispatch keys it would fill are filled here:
    the version of each written argument is raised (a later backward that saved it then refuses to run), and
    ``autograd(redispatch, *args)`` decides what is differentiated, ``redispatch(*args)`` being the op without autograd.
    """
    name = op._schema.name.split("::")[1]
    written = [n for n, a in enumerate(op._schema.arguments) if a.alias_info is not None and a.alias_info.is_write]

    def raise_versions(keyset: Any, *args: Any) -> Any:
        for n in written:
            if n < len(args) and args[n] is not None:
                torch.autograd.graph.increment_version(args[n])
        return op.redispatch(keyset & torch._C._after_ADInplaceOrView_keyset, *args)

    def with_autograd(keyset: Any, *args: Any) -> Any:
        def redispatch(*below: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return op.redispatch(keyset & torch._C._after_autograd_keyset, *below)

        return autograd(redispatch, *args)

    _library.impl(name, raise_versions, "ADInplaceOrView", with_keyset=True)
    _library.impl(name, with_autograd, "Autograd", with_keyset=True)


def row_major(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Kernels take any row stride but want the elements of a row side by side."""
    if tensor is None or tensor.stride(1) == 1 or (tensor.shape[1] <= 1 and tensor.stride(0) >= tensor.shape[1]):
        return tensor
    return tensor.contiguous()


def dense(vector: torch.Tensor | None) -> torch.Tensor | None:
    """Kernels want indices and scales side by side; nearly always they are, and nothing is copied."""
    return None if vector is None else vector.contiguous()
