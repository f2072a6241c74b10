"""The shipped recipes and their selection."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from rest_triton.config import MODELS, RECIPES, Config, read_recipe, recipe_for, recipes
from rest_triton.data.datasets import DATASETS
from rest_triton.methods.options import BASES, LAYERWISE, METHODS, SAINTS, SAMPLING

BASES_OF_NODES = ("mvs", "sgc", *SAMPLING)
OF_A_RUN = {"run_dir", "root", "seed", "device", "runs", "split", "method", "eval_updates_history"}

# From PyGAS's configuration files and the REST paper's tables, not from ours.
PUBLISHED: dict[str, dict[str, Any]] = {
    "arxiv_gcn": dict(num_parts=80, batch_size=40, num_layers=3, hidden_channels=256, dropout=0.5, batch_norm=True,
                      drop_input=False, epochs=300, lr=0.01, clip=0.0),
    "products_gcn": dict(num_parts=70, batch_size=10, num_layers=3, dropout=0.3, epochs=300, max_steps=4, lr=0.005),
    "products_gcnii": dict(num_parts=150, batch_size=1, num_layers=5, edge_dropout=0.8, shared_weights=False, first="exact"),
    "ppi_gcn": dict(linear=True, residual=True, hidden_channels=1024, first="cached", reg_weight_decay=0.0),
    "citeseer_gcnii": dict(num_layers=32, hidden_channels=256, dropout=0.7, theta=0.6, reg_weight_decay=0.01,
                           nonreg_weight_decay=0.0005, clip=1.0),
    "wikics_appnp": dict(num_parts=4, batch_size=2, num_layers=2, alpha=0.11, dropout=0.4, lr=0.02, mlp_layers=2),
    "arxiv_appnp": dict(num_parts=40, batch_size=20, num_layers=5, frequency=1, refresh_batch="same", drop_input=False),
    "papers100m_appnp": dict(first="cached", history="disk", dtype="bfloat16", partition="kaminpar", eval_every=5),
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
def test_each_data_set_and_method_has_its_source(path: Path) -> None:
    source = False
    for line in path.read_text().partition("\ndatasets:\n")[2].splitlines():
        source = line.strip().startswith("# Source: ") or (source and line != "")
        assert source or line in ("", "methods:") or line.lstrip(" ").startswith("#"), line
    assert list(yaml.safe_load(path.read_text())) in (["defaults", "datasets"], ["defaults", "datasets", "methods"])


# From the programs of the methods' authors, and from Table 3 of the REST paper.
OF_METHODS: dict[tuple[str, str], dict[str, Any]] = {
    ("reddit_gcn", "graphfm"): dict(push_momentum=0.5, lr=0.05, epochs=400, hidden_channels=256, num_parts=200),
    ("flickr_gcn", "graphfm+rest"): dict(push_momentum=0.1, hidden_channels=512, dropout=0.5, clip=2.0, epochs=1000),
    ("products_gcn", "graphfm"): dict(push_momentum=0.5, clip=2.0, max_steps=4, dropout=0.3, lr=0.005),
    ("products_gcnii", "graphfm+rest-is"): dict(push_momentum=0.1, dropout=0.1, lr=0.005, epochs=300, edge_dropout=0.8),
    ("arxiv_gcn", "lmc+rest"): dict(num_parts=80, batch_size=40, epochs=300, lr=0.01),
    ("reddit_gcn", "mvs"): dict(num_layers=2, hidden_channels=256, dropout=0.1, lr=0.001, importance_share=0.1, epochs=400),
    ("products_gcn", "mvs+rest"): dict(batch_nodes=50000, max_steps=0, num_layers=3),
    ("cora_gcn", "vrgcn"): dict(batch_nodes=1000, fanout="2", hidden_channels=32, dropout=0.5, reg_weight_decay=0.0005,
                                epochs=200, lr=0.01, clip=0.0),
    ("reddit_gcn", "vrgcn+rest-is"): dict(batch_nodes=512, hidden_channels=128, dropout=0.2, epochs=30),
    ("reddit_gcn", "graphfm-ib"): dict(fanouts=(2,) * 5, hidden_channels=256, batch_nodes=512, ib_momentum=0.1, lr=0.001),
    ("products_gcn", "refresh"): dict(fanouts=(10, 15, 20), batch_nodes=1000, lr=1e-4, gradient_quantile=0.9,
                                      stale_steps=200, dropout=0.1),
    ("reddit_gcn", "sage"): dict(fanouts=(10, 25), batch_nodes=512, hidden_channels=128),
    ("reddit_gcn", "fastgcn"): dict(layer_nodes=100, batch_nodes=256, hidden_channels=128, reg_weight_decay=1e-4),
    ("cora_gcn", "ladies"): dict(num_layers=5, layer_nodes=64, batch_nodes=512, row_normalise=True, max_steps=10, clip=0.2),
    ("reddit_gcn", "cluster"): dict(num_parts=1500, batch_size=20, num_layers=4, hidden_channels=512, lr=0.005, epochs=130),
    ("products_gcn", "cluster"): dict(num_parts=15000, batch_size=32, epochs=50, lr=0.001, max_steps=0),
    ("flickr_gcn", "saint-walk"): dict(subgraph_nodes=6000, walk_length=2, coverage=25.0, dropout=0.2),
    ("reddit_gcn", "saint-edge"): dict(subgraph_nodes=6000, coverage=50.0, clip=5.0),
    ("cora_gcn", "sgc"): dict(num_layers=2, lr=0.2, epochs=100, nonreg_weight_decay=1.3e-5, drop_input=False),
    ("arxiv_gcn", "full"): dict(epochs=500, num_layers=3, dropout=0.5, lr=0.01, batch_norm=True),
}  # fmt: skip


@pytest.mark.parametrize(("name", "method"), OF_METHODS, ids=" ".join)
def test_published_values_of_methods(name: str, method: str) -> None:
    config, wanted = Config.of(name, method=method), OF_METHODS[name, method]
    assert config.method == method and {setting: getattr(config, setting) for setting in wanted} == wanted
    assert Config.of(name, method=method, epochs=7).epochs == 7


@pytest.mark.parametrize("path", sorted(RECIPES.iterdir()), ids=lambda path: path.stem)
def test_settings_of_methods_have_an_effect(path: Path) -> None:
    file = yaml.safe_load(path.read_text())
    for method, of in file.get("methods", {}).items():
        assert method in BASES and of
        for dataset, own in of.items():
            config = Config.of(f"{dataset}_{path.stem}", method=method)
            assert dataset in file["datasets"] and not OF_A_RUN & own.keys() and config.idle(own) == []
            assert read_recipe(f"{dataset}_{path.stem}", method) == read_recipe(f"{dataset}_{path.stem}") | own


def test_each_is_a_run_by_each_method() -> None:
    for name in recipes():
        for method in METHODS:
            if method == "sgc" and not name.endswith("_gcn"):
                continue  # its model is linear
            config = Config.of(name, method=method)
            assert config.base not in BASES_OF_NODES or config.max_steps in (0, config.importance_every)
            assert config.base not in (*LAYERWISE, *SAINTS) or config.max_steps != 4  # which is for batches of clusters


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
