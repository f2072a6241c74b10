"""The recipes that are shipped: each one makes a run that its source describes."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from rest_triton.config import MODELS, RECIPES, Config, read_recipe, recipe_for, recipes
from rest_triton.data.datasets import DATASETS

SMALL = ("cora", "citeseer", "pubmed", "coauthor-cs", "coauthor-physics", "amazon-computers", "amazon-photo", "wikics")
LARGE = ("reddit", "ppi", "flickr", "yelp", "arxiv", "products")
PAIRS = (
    [(name, model) for name in SMALL for model in MODELS]
    + [(name, model) for name in LARGE for model in ("gcn", "gcnii")]
    + [(name, "appnp") for name in ("arxiv", "products", "reddit", "papers100m", "mag240m")]
)
OF_A_RUN = {"run_dir", "root", "seed", "device", "runs", "split", "method", "eval_updates_history"}

# From the sources, or what a recipe says it takes where they say nothing.
COLUMNS = (
    "num_parts", "batch_size", "num_layers", "hidden_channels", "dropout", "drop_input", "batch_norm",
    "epochs", "max_steps", "lr", "clip",
)  # fmt: skip
VALUES: dict[str, tuple[Any, ...]] = {
    "arxiv_gcn":              (80, 40, 3, 256, 0.5, False, True, 300, 0, 0.01, 0.0),
    "arxiv_gcnii":            (40, 20, 4, 256, 0.3, False, True, 500, 0, 0.01, 0.0),
    "arxiv_appnp":            (40, 20, 5, 512, 0.7, False, True, 2000, 0, 0.001, 0.0),
    "products_gcn":           (70, 10, 3, 256, 0.3, False, False, 300, 4, 0.005, 0.0),
    "products_gcnii":         (150, 1, 5, 128, 0.0, False, False, 240, 0, 0.001, 0.0),
    "products_appnp":         (40, 10, 5, 512, 0.3, False, True, 200, 0, 0.001, 0.0),
    "reddit_gcn":             (200, 100, 2, 256, 0.5, False, False, 400, 0, 0.01, 0.0),
    "flickr_gcnii":           (24, 12, 8, 256, 0.5, True, True, 400, 0, 0.01, 0.0),
    "yelp_gcn":               (40, 5, 2, 512, 0.0, False, False, 500, 4, 0.01, 0.0),
    "ppi_gcnii":              (20, 2, 9, 2048, 0.2, True, False, 2000, 0, 0.001, 1.0),
    "cora_gcn":               (40, 10, 2, 16, 0.5, True, False, 200, 0, 0.01, 1.0),
    "citeseer_gcnii":         (40, 20, 32, 256, 0.7, True, False, 1000, 0, 0.01, 1.0),
    "amazon-computers_gcnii": (32, 16, 16, 64, 0.2, True, False, 300, 0, 0.01, 1.0),
    "wikics_appnp":           (4, 2, 2, 64, 0.4, True, False, 600, 0, 0.02, 0.0),
}  # fmt: skip
OTHER_VALUES: dict[str, dict[str, Any]] = {
    "ppi_gcn": dict(linear=True, residual=True, input="cached"),
    "ppi_gcnii": dict(residual=True, alpha=0.5, theta=1.0, shared_weights=False, input="exact"),
    "arxiv_gcnii": dict(alpha=0.2, theta=0.5, shared_weights=True, input="exact"),
    "products_gcnii": dict(alpha=0.1, edge_dropout=0.8, shared_weights=False, input="exact"),
    "products_appnp": dict(alpha=0.01, mlp_layers=4, frequency=1, refresh_batch="same", input="exact"),
    "papers100m_appnp": dict(input="cached", history="disk", dtype="bfloat16", partition="stream"),
    "mag240m_appnp": dict(input="cached", history="disk", dtype="bfloat16", partition="stream"),
    "cora_gcn": dict(reg_weight_decay=0.0005, nonreg_weight_decay=0.0),
    "cora_appnp": dict(reg_weight_decay=0.005, nonreg_weight_decay=0.0, alpha=0.1, mlp_layers=2, input="exact"),
    "cora_gcnii": dict(reg_weight_decay=0.01, nonreg_weight_decay=0.0005, theta=0.5),
    "pubmed_gcnii": dict(reg_weight_decay=0.0005, nonreg_weight_decay=0.0005, theta=0.4),
    "wikics_appnp": dict(reg_weight_decay=0.0005, nonreg_weight_decay=0.0, alpha=0.11),
}


def test_which_there_are() -> None:
    assert recipes() == sorted(f"{name}_{model}" for name, model in PAIRS)
    assert {path.suffix for path in RECIPES.iterdir()} == {".yaml"}


@pytest.mark.parametrize("name", recipes())
def test_each_makes_a_run_of_what_it_is_named_after(name: str) -> None:
    settings, config = read_recipe(name), Config.of(name)
    dataset, model = name.rsplit("_", 1)
    assert (settings["dataset"], settings["model"]) == (config.dataset, config.model) == (dataset, model)
    assert dataset in DATASETS and model in MODELS
    assert not OF_A_RUN & settings.keys()


@pytest.mark.parametrize("name", recipes())
def test_each_names_its_source(name: str) -> None:
    lines = (RECIPES / f"{name}.yaml").read_text().splitlines()
    comment = lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))]
    assert "Source" in comment[0] and len(comment) > 2
    assert max(map(len, lines)) <= 125


@pytest.mark.parametrize("name", recipes())
def test_settings_that_belong_together(name: str) -> None:
    settings, config = read_recipe(name), Config.of(name)
    batches = -(-config.num_parts // config.batch_size)
    assert config.max_steps < batches and ("max_steps" in settings) == (config.max_steps > 0)
    assert config.eval_every == 1 or config.dataset not in SMALL
    if config.model != "gcn":
        assert settings["input"] == ("cached" if config.dataset in ("papers100m", "mag240m") else "exact")


@pytest.mark.parametrize("name", VALUES)
def test_values(name: str) -> None:
    config = Config.of(name)
    assert {column: getattr(config, column) for column in COLUMNS} == dict(zip(COLUMNS, VALUES[name], strict=True))


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_other_values(name: str) -> None:
    config = Config.of(name)
    assert {setting: getattr(config, setting) for setting in OTHER_VALUES[name]} == OTHER_VALUES[name]


def test_what_is_given_counts_more_than_a_recipe() -> None:
    config = Config.of("arxiv_gcn", batch_size=5, method="gas+rest")
    assert (config.num_parts, config.batch_size, config.method) == (80, 5, "gas+rest")


def test_a_setting_that_is_not_known(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("dataset: cora\nhiden_channels: 16\n")
    with pytest.raises(ValueError, match=r"own\.yaml: 'hiden_channels' is not a setting: did you mean 'hidden_channels'\?"):
        Config.of(str(path))
    path.write_text((RECIPES / "cora_gcn.yaml").read_text().replace("batch_size:", "batch_size:"))
    with pytest.raises(ValueError, match=r"'batch_size' is not a setting: .*known are: dataset, "):
        Config.of(str(path))


def test_weight_decay_as_people_write_them(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("dataset: cora\nreg_weight_decay: 5e-4\nclip: 1\n")
    assert isinstance(yaml.safe_load(path.read_text())["reg_weight_decay"], str)  # YAML wants 5.0e-4
    config = Config.of(str(path))
    assert (config.reg_weight_decay, config.clip) == (0.0005, 1.0)


def test_a_recipe_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="'product_gcn' is neither a recipe nor a file: did you mean 'products_gcn'"):
        Config.of("product_gcn")


@pytest.mark.parametrize(
    ("dataset", "model", "recipe"),
    [
        ("arxiv", "gcn", "arxiv_gcn"),
        ("synthetic:arxiv@0.1", "gcn", "arxiv_gcn"),
        ("synthetic:products", "gcnii", "products_gcnii"),
        ("x/cora.npz", "appnp", "cora_appnp"),
        ("amazon-photo", "gcn", "amazon-photo_gcn"),
        ("unknown", "gcn", None),
        ("papers100m", "gcn", None),
        ("synthetic:nodes=500,edges=3000,features=16,classes=4", "gcn", None),
        ("x/unknown.npz", "gcn", None),
        ("", "gcn", None),
    ],
)
def test_which_one_fits(dataset: str, model: str, recipe: str | None) -> None:
    assert recipe_for(dataset, model) == recipe
