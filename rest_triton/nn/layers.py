"""The parameters of layers, under the names that PyG's layers have, so that weights can be taken from and to them."""

import inspect
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.nn import BatchNorm1d, Linear, Module, ModuleList, Parameter

if TYPE_CHECKING:
    from ..config import Config

ModelT = TypeVar("ModelT", bound=Module)


class Convolution(Module):
    """W and b of a GCN layer: ``lin.weight`` [out, in] and ``bias`` [out]."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin = Linear(in_channels, out_channels, bias=False)
        bound = math.sqrt(6 / (in_channels + out_channels))
        torch.nn.init.uniform_(self.lin.weight, -bound, bound)
        self.bias = Parameter(torch.zeros(out_channels))


class DeepConvolution(Module):
    """The weights of a GCNII layer, [channels, channels]: ``weight1``, and ``weight2`` where the first embedding has one."""

    def __init__(self, channels: int, shared_weights: bool) -> None:
        super().__init__()
        bound = math.sqrt(6 / (2 * channels))
        self.weight1 = Parameter(torch.empty(channels, channels).uniform_(-bound, bound))
        self.weight2 = None if shared_weights else Parameter(torch.empty(channels, channels).uniform_(-bound, bound))


def batch_norms(widths: Iterable[int], wanted: bool) -> ModuleList:
    return ModuleList(BatchNorm1d(width) for width in widths) if wanted else ModuleList()


def norm_of(norms: ModuleList, layer: int) -> Any:
    """The BatchNorm of a layer, or None for a model without them."""
    return norms[layer] if len(norms) else None


def build(model: type[ModelT], in_channels: int, out_channels: int, config: "Config") -> ModelT:
    """A model of these sizes, with those settings of a configuration that its constructor names."""
    names = [n for n in inspect.signature(model).parameters if n not in ("in_channels", "out_channels")]
    settings = {name: getattr(config, name) for name in names if hasattr(config, name)}
    return model(in_channels=in_channels, out_channels=out_channels, **settings)


def parameter_groups(model: Module) -> tuple[list[Parameter], list[Parameter]]:
    """(hidden layers, the rest), for two weight decays. A model says which is which by ``reg_modules``; one that does not
    has only hidden layers."""
    inner = {id(p) for module in getattr(model, "reg_modules", [model]) for p in module.parameters()}
    both = list(model.parameters())
    return [p for p in both if id(p) in inner], [p for p in both if id(p) not in inner]
