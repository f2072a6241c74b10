"""The shipped recipes and their selection."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from rest_triton.config import MODELS, RECIPES, Config, read_recipe, recipe_for, recipes
from rest_triton.data.datasets import DATASETS

OF_A_RUN = {"run_dir", "root", "seed", "device", "runs", "split", "method", "eval_updates_history"}

# From PyGAS's configuration files and the REST paper's tables, not from ours.
PUBLISHED: dict[str, dict[str, Any]] = {
    "arxiv_gcn": dict(num_parts=80, batch_size=40, num_layers=3, hidden_channels=256, dropout=0.5, batch_norm=True,
                      drop_input=False, epochs=300, lr=0.01, clip=0.0),
    "products_gcn": dict(num_parts=70, batch_size=10, num_layers=3, dropout=0.3, epochs=300, max_steps=4, lr=0.005),
    "products_gcnii": dict(num_parts=150, batch_size=1, num_layers=5, edge_dropout=0.8, shared_weights=False, input="exact"),
    "ppi_gcn": dict(linear=True, residual=True, hidden_channels=1024, input="cached", reg_weight_decay=0.0),
    "citeseer_gcnii": dict(num_layers=32, hidden_channels=256, dropout=0.7, theta=0.6, reg_weight_decay=0.01,
                           nonreg_weight_decay=0.0005, clip=1.0),
    "wikics_appnp": dict(num_parts=4, batch_size=2, num_layers=2, alpha=0.11, dropout=0.4, lr=0.02, mlp_layers=2),
    "arxiv_appnp": dict(num_parts=40, batch_size=20, num_layers=5, frequency=1, refresh_batch="same", drop_input=False),
    "papers100m_appnp": dict(input="cached", history="disk", dtype="bfloat16", partition="stream", eval_every=5),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_values(name: str) -> None:
    config = Config.of(name)
    assert {setting: getattr(config, setting) for setting in PUBLISHED[name]} == PUBLISHED[name]


def test_each_makes_a_run_of_what_it_is_named_after() -> None:
    assert len(recipes()) == 41
    for name in recipes():
        settings, config = read_recipe(name), Config.of(name)
        dataset, model = name.rsplit("_", 1)
        assert (config.dataset, config.model) == (dataset, model) and dataset in DATASETS and model in MODELS
        assert not OF_A_RUN & settings.keys() and config.idle(settings) in ([], config.idle(["frequency", "refresh_batch"]))
        assert config.max_steps < -(-config.num_parts // config.batch_size)


@pytest.mark.parametrize("path", sorted(RECIPES.iterdir()), ids=lambda path: path.stem)
def test_each_data_set_has_its_source(path: Path) -> None:
    source = False
    for line in path.read_text().partition("\ndatasets:\n")[2].splitlines():
        source = line.strip().startswith("# Source: ") or (source and line != "")
        assert source or line == "" or line.startswith("  #"), line
    assert list(yaml.safe_load(path.read_text())) == ["defaults", "datasets"]


def test_what_is_given_counts_more_than_a_recipe() -> None:
    config = Config.of("arxiv_gcn", batch_size=5, method="gas+rest")
    assert (config.num_parts, config.batch_size, config.method) == (80, 5, "gas+rest")


def test_a_recipe_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="'product_gcn' is neither a recipe nor a file: did you mean 'products_gcn'"):
        Config.of("product_gcn")


@pytest.mark.parametrize(
    ("dataset", "model", "recipe"),
    [
        ("arxiv", "gcn", "arxiv_gcn"),
        ("synthetic:products@0.1", "gcnii", "products_gcnii"),
        ("x/cora.npz", "appnp", "cora_appnp"),
        ("unknown", "gcn", None),
        ("papers100m", "gcn", None),
        ("synthetic:nodes=500,edges=3000,features=16,classes=4", "gcn", None),
        ("x/unknown.npz", "gcn", None),
        ("", "gcn", None),
    ],
)
def test_which_one_fits(dataset: str, model: str, recipe: str | None) -> None:
    assert recipe_for(dataset, model) == recipe
