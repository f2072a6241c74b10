"""Registration of an op with torch: schema, kernels by device, autograd."""

from collections.abc import Callable
from typing import Any

import torch

NAMESPACE = "rest_triton"
_library = torch.library.Library(NAMESPACE, "DEF")


def define(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> torch._ops.OpOverload:
    """Define the op ``rest_triton::schema``.

    ``kernel`` runs on CPU and GPU. Where arguments lie on both, such as a table in pinned memory, torch dispatches to the
    GPU. ``fake`` returns an empty tensor with the result's shape, dtype and device.
    """
    name = schema.split("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, kernel, "CPU")
    _library.impl(name, kernel, "CUDA")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def differentiate(op: torch._ops.OpOverload, setup_context: Callable[..., None], backward: Callable[..., Any]) -> None:
    """Register the backward of an op without side effects."""
    torch.library.register_autograd(op.name(), backward, setup_context=setup_context, lib=_library)


def mutate(op: torch._ops.OpOverload, autograd: Callable[..., Any]) -> None:
    """Register the autograd of an op that writes into its arguments.

    ``torch.library.register_autograd`` takes functional ops only, so this function fills its two dispatch keys.
    ADInplaceOrView raises the version of each written argument: a backward that has saved the argument then fails.
    Autograd calls ``autograd(redispatch, *args)``, where ``redispatch(*args)`` is the op without autograd.
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
    """The tensor, copied if the elements of a row are not contiguous. Kernels take any row stride."""
    if tensor is None or tensor.stride(1) == 1 or (tensor.shape[1] <= 1 and tensor.stride(0) >= tensor.shape[1]):
        return tensor
    return tensor.contiguous()


def dense(vector: torch.Tensor | None) -> torch.Tensor | None:
    """The vector, copied if it is not contiguous, as kernels require of indices and scales."""
    return None if vector is None else vector.contiguous()
