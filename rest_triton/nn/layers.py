"""The parameters of layers, with the names of PyG's layers, so that weights can be copied between both."""

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
    """The weights of a GCNII layer, [channels, channels]: ``weight1``, and ``weight2`` or None for the first embedding."""

    def __init__(self, channels: int, shared_weights: bool) -> None:
        super().__init__()
        bound = math.sqrt(6 / (2 * channels))
        self.weight1 = Parameter(torch.empty(channels, channels).uniform_(-bound, bound))
        self.weight2 = None if shared_weights else Parameter(torch.empty(channels, channels).uniform_(-bound, bound))


def batch_norms(widths: Iterable[int], wanted: bool) -> ModuleList:
    return ModuleList(BatchNorm1d(width) for width in widths) if wanted else ModuleList()


def norm_of(norms: ModuleList, layer: int) -> Any:
    """The BatchNorm of a layer, or None if the model has none."""
    return norms[layer] if len(norms) else None


def build(model: type[ModelT], in_channels: int, out_channels: int, config: "Config") -> ModelT:
    """A model of these sizes. Its constructor gets the settings that it names."""
    names = [n for n in inspect.signature(model).parameters if n not in ("in_channels", "out_channels")]
    settings = {name: getattr(config, name) for name in names if hasattr(config, name)}
    return model(in_channels=in_channels, out_channels=out_channels, **settings)


def parameter_groups(model: Module) -> tuple[list[Parameter], list[Parameter]]:
    """(parameters of hidden layers, the others), for two weight decays.

    A model lists its hidden layers as ``reg_modules``. Without it all layers count as hidden.
    """
    inner = {id(p) for module in getattr(model, "reg_modules", [model]) for p in module.parameters()}
    both = list(model.parameters())
    return [p for p in both if id(p) in inner], [p for p in both if id(p) not in inner]
