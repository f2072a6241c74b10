"""Configurations for tests of the plan: of a data set that is not asked for by name."""

from typing import Any

from rest_triton.config import Config


def Settings(model: str = "gcn", hidden_channels: int = 256, num_layers: int = 3, **others: Any) -> Config:
    made = Config(dataset="graph", model=model, hidden_channels=hidden_channels, num_layers=num_layers, **others)
    return made if made.device != "auto" else made.changed(device="cpu")
