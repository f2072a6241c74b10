"""Settings: their sources, and values that are refused."""

import ast
import inspect
import re
import subprocess
import sys
from dataclasses import MISSING, asdict, fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from rest_triton.config import RECIPES, RENAMED, Config, flag, from_flags, read_recipe
from rest_triton.methods.options import ABOUT, BASES, METHODS, REFRESHES, TABLELESS
from rest_triton.train import main
from rest_triton.utils.errors import UserError

from .commands import here


def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command. All cases here end before torch is imported."""
    command = [sys.executable, "-m", "rest_triton.train", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60)


def printed(*arguments: str, cwd: Path) -> dict[str, Any]:
    result = command(*arguments, "--print-config", cwd=cwd)
    assert result.returncode == 0 and result.stderr == "", result.stderr
    return yaml.safe_load(result.stdout)


def test_the_later_one_counts(tmp_path: Path) -> None:
    defaults = {f.name: f.default for f in fields(Config) if f.default is not MISSING}
    recipe = read_recipe("cora_gcn")
    flags = {"batch_size": 5, "epochs": 7, "lr": 0.25, "method": "gas+rest"}
    assert recipe["batch_size"] != 5 and recipe["epochs"] != 7 and recipe["lr"] != 0.25 and defaults["num_parts"] == 40
    arguments = ["--dataset", "cora", "--batch-size", "5", "--epochs", "7", "--lr", "0.25", "--method", "gas+rest"]
    wanted = defaults | recipe | flags | {"dataset": "cora"}
    assert printed(*arguments, cwd=tmp_path) == wanted
    assert asdict(Config.of("cora_gcn", **flags)) == wanted
    alone = {"dataset": "cora", "batch_size": 5, "epochs": 7, "lr": 0.25, "method": "gas+rest"}
    assert printed(*arguments, "--recipe", "none", cwd=tmp_path) == defaults | alone


def test_what_is_printed_is_a_recipe(tmp_path: Path) -> None:
    arguments = ["--dataset", "products", "--model", "appnp", "--lr", "5e-4", "--no-batch-norm", "--run-dir", "a b"]
    first = command(*arguments, "--print-config", cwd=tmp_path)
    (tmp_path / "own.yaml").write_text(first.stdout)
    again = command("--recipe", "own.yaml", "--print-config", cwd=tmp_path)
    assert again.stdout == first.stdout and again.returncode == 0
    config = Config.of(str(tmp_path / "own.yaml"))
    assert (config.lr, config.batch_norm, config.run_dir, config.mlp_layers) == (0.0005, False, "a b", 4)
    assert Config.of(str(tmp_path / "own.yaml")).to_yaml() == first.stdout


def test_switches(tmp_path: Path) -> None:
    assert read_recipe("cora_gcn")["drop_input"] is True and Config(dataset="x").shared_weights is True
    found = printed("--dataset", "cora", "--no-drop-input", "--no-shared-weights", "--amp", cwd=tmp_path)
    assert (found["drop_input"], found["shared_weights"], found["amp"], found["profile"]) == (False, False, True, False)


@pytest.mark.parametrize(
    ("flags", "recipe"),
    [
        ({"dataset": "cora"}, "cora_gcn"),
        ({"dataset": "synthetic:arxiv@0.1", "model": "appnp"}, "arxiv_appnp"),
        ({"dataset": "cora", "model": "own"}, None),
        ({"dataset": "synthetic:nodes=600,edges=5000"}, None),
        ({"dataset": "cora", "recipe": "none"}, None),
        ({"dataset": "cora", "recipe": "arxiv_gcn"}, "arxiv_gcn"),
        ({"recipe": "arxiv_gcn"}, "arxiv_gcn"),
    ],
)
def test_which_recipe(flags: dict[str, Any], recipe: str | None) -> None:
    config, found = from_flags(flags)
    assert found == recipe
    assert config.dataset == flags.get("dataset", "arxiv")
    if recipe:
        assert config.epochs == read_recipe(recipe)["epochs"] != 100


def test_numbers_as_people_write_them(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("dataset: cora\nlr: 5e-4\nclip: 1\nreg_weight_decay: 1E-3\n")
    assert isinstance(yaml.safe_load(path.read_text())["lr"], str)
    config = Config.of(str(path))
    assert (config.lr, config.clip, config.reg_weight_decay) == (0.0005, 1.0, 0.001)
    assert isinstance(config.clip, float)


LIMITS: list[tuple[dict[str, Any], str]] = [
    (dict(dataset=""), "dataset is missing; name one with --dataset, such as --dataset products"),
    (dict(split=-1), "split is -1; it must be at least 0"),
    (dict(num_parts=0), "num_parts is 0; it must be at least 1"),
    (dict(batch_size=0), "batch_size is 0; it must be at least 1"),
    (dict(num_parts=6, batch_size=7), "batch_size is 7, and there are 6 clusters; give --batch-size 1 to 6"),
    (dict(partition="mets"), "partition is 'mets': did you mean 'metis'? known are: auto, kaminpar, metis, random"),
    (dict(features="disc"), "features is 'disc': did you mean 'disk'? known are: auto, device, pinned, disk"),
    (dict(feature_dtype="half"), "feature_dtype is 'half': known are: float32, float16, bfloat16"),
    (dict(num_layers=0), "num_layers is 0; it must be at least 1"),
    (dict(hidden_channels=0), "hidden_channels is 0; it must be at least 1"),
    (dict(dropout=-0.1), "dropout is -0.1; it must be 0 to 1"),
    (dict(dropout=1.1), "dropout is 1.1; it must be 0 to 1"),
    (dict(alpha=-0.1), "alpha is -0.1; it must be 0 to 1"),
    (dict(alpha=2), "alpha is 2.0; it must be 0 to 1"),
    (dict(theta=-1.0), "theta is -1.0; it must be at least 0"),
    (dict(mlp_layers=0), "mlp_layers is 0; it must be at least 1"),
    (dict(heads=0), "heads is 0; it must be at least 1"),
    (dict(method="rest"), f"method is 'rest': did you mean 'mvs+rest'? known are: {', '.join(METHODS)}"),
    (dict(method="full+rest"), "method is 'full+rest', but full has no tables to refresh; give --method full"),
    (dict(method="gas+"), f"method is 'gas+': did you mean 'gas'? known are: {', '.join(METHODS)}"),
    (dict(method="gas+rest+rest"), "method is 'gas+rest+rest': did you mean 'gas+rest"),
    (dict(frequency=0), "frequency is 0; it must be at least 1"),
    (dict(method="gas+rest", refresh_batch="full", frequency=2), "frequency is 2, but refresh_batch full"),
    (dict(method="gas+rest", refresh_batch="full", frequency="auto"), "frequency is auto, but refresh_batch full"),
    (dict(method="gas+rest-is", frequency="auto"), "frequency is auto, but method gas+rest-is does not support it"),
    (dict(frequency="often"), "frequency is 'often'; it must be a whole number or auto"),
    (dict(gradient_frequency=-1), "gradient_frequency is -1; it must be at least 0"),
    (dict(target_age=-1.0), "target_age is -1.0; it must be at least 0"),
    (dict(target_drift=-1.0), "target_drift is -1.0; it must be at least 0"),
    (dict(refresh_batch="halve"), "refresh_batch is 'halve': did you mean 'half'? known are: same, half, full"),
    (dict(refresh_order="old"), "refresh_order is 'old': did you mean 'oldest'? known are: uniform, oldest"),
    (dict(refresh_norm="none"), "refresh_norm is 'none': known are: auto, batch, running"),
    (dict(method="gas+rest", refresh_mode="eval", refresh_norm="batch"), "refresh_norm is batch, but refresh_mode eval"),
    (dict(refresh_mode="training"), "refresh_mode is 'training': did you mean 'train'? known are: train, eval"),
    (dict(push_momentum=-0.1), "push_momentum is -0.1; it must be 0 to 1"),
    (dict(batch_nodes=0), "batch_nodes is 0; it must be at least 1"),
    (dict(importance_every=0), "importance_every is 0; it must be at least 1"),
    (dict(importance_share=-0.1), "importance_share is -0.1; it must be 0 to 1"),
    (dict(importance_share=1.5), "importance_share is 1.5; it must be 0 to 1"),
    (dict(method="mvs+rest", frequency="auto", target_drift=0.1), "target_drift is 0.1, but rows of a batch of"),
    (dict(push_momentum=1.5), "push_momentum is 1.5; it must be 0 to 1"),
    (dict(beta=-0.1), "beta is -0.1; it must be 0 to 1"),
    (dict(beta=1.5), "beta is 1.5; it must be 0 to 1"),
    (dict(score="line"), "score is 'line': did you mean 'linear'? known are: linear, const, concave, convex, sin"),
    (dict(ib_momentum=-0.1), "ib_momentum is -0.1; it must be 0 to 1"),
    (dict(ib_momentum=1.5), "ib_momentum is 1.5; it must be 0 to 1"),
    (dict(gradient_quantile=-0.1), "gradient_quantile is -0.1; it must be 0 to 1"),
    (dict(gradient_quantile=1.5), "gradient_quantile is 1.5; it must be 0 to 1"),
    (dict(stale_steps=-1), "stale_steps is -1; it must be at least 0"),
    (dict(cache_rows=-1), "cache_rows is -1; it must be at least 0"),
    (dict(layer_nodes=0), "layer_nodes is 0; it must be at least 1"),
    (dict(subgraph_nodes=0), "subgraph_nodes is 0; it must be at least 1"),
    (dict(walk_length=0), "walk_length is 0; it must be at least 1"),
    (dict(coverage=-0.9), "coverage is -0.9; it must be at least 0"),
    (dict(row_normalise="rows"), "row_normalise is 'rows'; it must be true or false"),
    (dict(method="sage+rest"), "method is 'sage+rest', but sage has no tables to refresh; give --method sage, or one of"),
    (dict(method="saint-walk", model="pna"), "method is saint-walk, but model pna does not sum over neighbours"),
    (dict(method="ladies", edge_dropout=0.5), "edge_dropout is 0.5, but method ladies samples neighbours instead"),
    (dict(method="sgc", model="gcnii"), "model is gcnii, but sgc is a linear model of aggregated features"),
    (dict(fanout="ten"), "fanout is 'ten'; it must be a whole number of at least 1, or one for each of the"),
    (dict(fanout="10,10"), "fanout is '10,10'; it must be a whole number of at least 1, or one for each of the"),
    (dict(fanout="0"), "fanout is '0'; it must be a whole number of at least 1, or one for each of the"),
    (dict(method="vrgcn", model="gat"), "method is vrgcn, but model gat does not sum over neighbours; give --method gas"),
    (dict(method="refresh", edge_dropout=0.5), "edge_dropout is 0.5, but method refresh samples neighbours instead; give"),
    (dict(method="lmc-coded+rest", model="gin"), "method is lmc-coded+rest, but layers of model gin have a ReLU inside, "
                                                 "which incomplete sums get wrong; give --method lmc+rest, or"),
    (dict(method="graphfm", model="gat"), "method is graphfm, but model gat does not sum over neighbours; give"),
    (dict(first="cache"), "first is 'cache': did you mean 'cached'? known are: auto, cached, exact"),
    (dict(model="gat", first="exact"), "first is exact, but the first layer of model gat reads the features of all "
                                       "neighbours, those of a halo two edges away; give --first cached, or --model"),
    (dict(model="gin", first="exact", drop_input=True, dropout=0.1), "first is exact, but drop_input is on, and aggregates "
                                       "of dropped features are not computed once; give --first cached or --no-drop-input"),
    (dict(history="gpu"), "history is 'gpu': known are: auto, device, pinned, disk"),
    (dict(dtype="bf16"), "dtype is 'bf16': did you mean 'bfloat16'? known are: float32, bfloat16, float16"),
    (dict(epochs=0), "epochs is 0; it must be at least 1"),
    (dict(epochs=1.5), "epochs is 1.5; it must be a whole number"),
    (dict(epochs=True), "epochs is True; it must be a whole number"),
    (dict(epochs="ten"), "epochs is 'ten'; it must be a whole number"),
    (dict(epochs=None), "epochs is None; it must be a whole number"),
    (dict(max_steps=-1), "max_steps is -1; it must be at least 0"),
    (dict(lr=-0.1), "lr is -0.1; it must be at least 0"),
    (dict(lr="fast"), "lr is 'fast'; it must be a number"),
    (dict(lr=True), "lr is True; it must be a number"),
    (dict(lr=float("nan")), "lr is nan; it must be a finite number"),
    (dict(lr="inf"), "lr is inf; it must be a finite number"),
    (dict(reg_weight_decay=-1.0), "reg_weight_decay is -1.0; it must be at least 0"),
    (dict(nonreg_weight_decay=-1.0), "nonreg_weight_decay is -1.0; it must be at least 0"),
    (dict(clip=-1), "clip is -1.0; it must be at least 0"),
    (dict(accumulate=0), "accumulate is 0; it must be at least 1"),
    (dict(edge_dropout=-0.1), "edge_dropout is -0.1; it must be 0 to 1"),
    (dict(edge_dropout=1.5), "edge_dropout is 1.5; it must be 0 to 1"),
    (dict(amp=1), "amp is 1; it must be true or false"),
    (dict(amp="yes"), "amp is 'yes'; it must be true or false"),
    (dict(seed=-1), "seed is -1; it must be 0 to 9223372036854775807"),
    (dict(seed=2**63), "seed is 9223372036854775808; it must be 0 to 9223372036854775807"),
    (dict(runs=0), "runs is 0; it must be at least 1"),
    (dict(memory_budget="48G"), "memory_budget is '48G'; it must be a size, such as 48GiB, 500MB or a number of bytes"),
    (dict(device_budget="0"), "device_budget is '0'; it must be a size, such as"),
    (dict(device="gpu"), "device is 'gpu': did you mean 'cpu'? known are: auto, cpu, cuda"),
    (dict(eval_every=0), "eval_every is 0; it must be at least 1"),
    (dict(error_every=-1), "error_every is -1; it must be at least 0"),
    (dict(run_dir=3), "run_dir is 3; it must be text"),
    (dict(checkpoint_every=0), "checkpoint_every is 0; it must be at least 1"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "message"), LIMITS, ids=lambda value: str(value)[:40])
def test_what_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refusal:
        Config(**({"dataset": "cora"} | wrong))
    assert str(refusal.value).startswith(message)


def test_a_choice_that_is_gone() -> None:
    """Files of old runs may have it. A flag is answered with its successor, before anything is loaded."""
    assert Config(dataset="cora", partition="stream").partition == "stream"
    with pytest.raises(UserError, match=r"^partition is 'stream', which is gone; give --partition kaminpar$"):
        from_flags({"dataset": "cora", "partition": "stream"})


def test_every_limit_is_in_the_table() -> None:
    """Every limit has a refused value in the table, and its last allowed value is accepted."""
    refused = [(name, value) for wrong, _ in LIMITS for name, value in wrong.items()]
    numbers = [(name, value) for name, value in refused if isinstance(value, int | float)]
    for f in fields(Config):
        least, most, choices = (f.metadata[key] for key in ("least", "most", "choices"))
        assert not choices or any(name == f.name and value not in choices for name, value in refused), f.name
        assert least is None or any(name == f.name and value < least for name, value in numbers), f.name
        assert most is None or any(name == f.name and value > most for name, value in numbers), f.name
        rest: dict[str, Any] = dict(dataset="cora", batch_size=1)
        for good in (*choices, *(limit for limit in (least, most) if limit is not None)):
            assert getattr(Config(**(rest | {f.name: good})), f.name) == good


def test_a_method_is_a_base_and_what_refreshes_its_tables() -> None:
    with_tables = ("gas", "lmc", "lmc-coded", "graphfm", "graphfm-ib", "vrgcn", "mvs", "refresh")
    bases = len(with_tables) + len(TABLELESS)
    assert TABLELESS[0] == "sage" and TABLELESS[-1] == "full" and METHODS[:bases] == (*with_tables, *TABLELESS)
    assert METHODS[bases:] == tuple(f"{base}+{rest}" for base in with_tables for rest in ("rest", "rest-is"))
    parts = [(config.base, config.rest) for config in (Config(dataset="cora", method=method) for method in METHODS)]
    assert parts[:bases] == [(base, "") for base in METHODS[:bases]]
    assert parts[bases : bases + 2] == [("gas", "rest"), ("gas", "rest-is")]
    auto = Config(dataset="cora", method="gas+rest", frequency="auto", history="disk", lr=0.5)
    assert auto.by_method("full") == Config(dataset="cora", method="full", lr=0.5)


def test_settings_by_their_old_names(tmp_path: Path) -> None:
    """Files with old names are read. Old names in calls are refused with the new name."""
    path = tmp_path / "own.yaml"
    path.write_text("dataset: cora\nparts: 9\nper_batch: 3\nmodel: appnp\ninput: exact\n")
    assert Config.of(str(path)) == Config(dataset="cora", num_parts=9, batch_size=3, model="appnp", first="exact")
    assert Config.of(str(path), num_parts=7).num_parts == 7
    with pytest.raises(UserError, match="these settings: 'per_batch' is not a setting: it is 'batch_size' now"):
        Config.of(dataset="cora", per_batch=3)


def test_what_one_method_needs_does_not_concern_another() -> None:
    assert Config(dataset="cora", first="exact", linear=True, drop_input=True, dropout=0.5).first == "exact"
    assert Config(dataset="cora", method="gas+rest-is", refresh_batch="full", frequency=2).frequency == 2
    assert Config(dataset="cora", model="appnp", first="exact").first == "exact"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dataset: cora\nhiden_channels: 16\n", "'hiden_channels' is not a setting: did you mean 'hidden_channels'? known"),
        ("dataset: cora\n7: 16\n", "7 is not a setting: known are: dataset, root"),
        ("dataset: cora\nlr: {a: 1}\n", "lr is {'a': 1}; it must be a number"),
        ("- dataset\n- cora\n", "holds list; a recipe has lines of the form 'name: value'"),
        ("dataset: cora: lr\n", "is not YAML: mapping values are not allowed here in"),
        ("", "dataset is missing"),
    ],
)  # fmt: skip
def test_recipes_that_are_wrong(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(ValueError) as refusal:
        Config.of(str(path))
    assert message in str(refusal.value) and "\n" not in str(refusal.value)
    assert "own.yaml" in str(refusal.value) or "is not a setting" not in message


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--dataset", "cora", "--lrr", "1"], 2, "--lrr is not a flag: did you mean '--lr'? known are: --help, "),
        (["--dataset", "cora", "--hidden=16"], 2, "--hidden is not a flag: did you mean '--hidden-channels'? "),
        (["--dataset", "cora", "--parts", "4"], 2, "--parts is --num-parts now"),
        (["--dataset", "cora", "--per-batch=4"], 2, "--per-batch is --batch-size now"),
        (["cora"], 2, "cora comes after no flag; --help lists them"),
        (["--dataset", "cora", "--epochs", "x"], 1, "epochs is 'x'; it must be a whole number"),
        (["--dataset", "cora", "--batch-size", "41"], 1, "batch_size is 41, and there are 40 clusters"),
        (
            ["--dataset", "cora", "--fanout", "5", "--method", "ladies"],
            1,
            "fanout is '5', but method ladies samples nodes, not neighbours; leave --fanout",
        ),
        (["--dataset", "cora", "--fanout", "5"], 1, "fanout is '5', but method gas reads all neighbours; leave --fanout"),
        (["--dataset", "cora", "--model", "gcnn"], 1, "model is 'gcnn': did you mean 'gcn'? known are: gcn, "),
        (["--recipe", "cora"], 1, "'cora' is neither a recipe nor a file: did you mean 'cora_"),
        (["--recipe", "."], 1, "'.' is neither a recipe nor a file: known are: amazon"),
        ([], 1, "dataset is missing; name one with --dataset"),
        (["--resume", "nowhere"], 1, "nowhere is not the folder of a run: it has no config.yaml; name one, such as runs/"),
    ],
)
def test_one_line_and_no_traceback(arguments: list[str], code: int, message: str, tmp_path: Path) -> None:
    result = command(*arguments, cwd=tmp_path)
    assert result.returncode == code and result.stdout == ""
    assert result.stderr.startswith(message) and result.stderr.count("\n") == 1, result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        (dict(frequency=2),
         ["--frequency changes nothing: it belongs to method NAME+rest or NAME+rest-is, and method is gas"]),
        (dict(frequency=2, method="gas+rest-is"), []),
        (dict(frequency=2, target_age=3, method="gas+rest"),
         ["--target-age changes nothing: it belongs to frequency auto, and frequency is 2"]),
        (dict(refresh_order="oldest", refresh_mode="eval", method="gas+rest-is"),
         ["--refresh-order changes nothing: it belongs to method NAME+rest, and method is gas+rest-is"]),
        (dict(dtype="bfloat16", method="full"),
         ["--dtype changes nothing: it belongs to method gas or lmc or lmc-coded or graphfm or graphfm-ib or vrgcn "
          "or mvs or refresh, and method is full"]),
        (dict(gradient_frequency=0, method="gas+rest"),
         ["--gradient-frequency changes nothing: it belongs to method lmc+rest or lmc-coded+rest, and method is gas+rest"]),
        (dict(theta=1.0, alpha=0.2, model="appnp"),
         ["--theta changes nothing: it belongs to model gcnii, and model is appnp"]),
        (dict(theta=1.0, alpha=0.2, model="sage"), []),
    ],
)  # fmt: skip
def test_what_changes_nothing_is_said(settings: dict[str, Any], lines: list[str]) -> None:
    config = Config(dataset="cora", **settings)
    assert config.idle(settings) == lines
    assert config.idle(["lr"]) == [] == Config.of("reddit_appnp").idle(["dataset"])  # only what was asked for


def test_settings_without_effect_on_a_model() -> None:
    """A setting is idle for a model if the model's constructor does not name it."""
    from rest_triton.nn import MODELS as classes

    for name, model in classes.items():
        of_models = [f.name for f in fields(Config) if f.metadata["group"] == "model" and f.name != "model"]
        takes = [setting for setting in of_models if setting in inspect.signature(model).parameters]
        assert [line.split()[0] for line in Config(dataset="cora", model=name).idle(of_models)] == [
            flag(setting) for setting in of_models if setting not in takes
        ]


def test_the_command_says_what_changes_nothing(tmp_path: Path) -> None:
    result = here(main, "--dataset", "nowhere.npz", "--frequency", "2", cwd=tmp_path)
    assert result.returncode == 1 and result.stdout.startswith("--frequency changes nothing: "), result


def flags_in(module: ast.AST) -> set[str]:
    """What looks like a flag in the string literals of a module."""
    texts = [node.value for node in ast.walk(module) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return {name for text in texts for name in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)}


def test_every_flag_that_is_named_exists(tmp_path: Path) -> None:
    """In messages, help texts and docstrings."""
    names = ("train", "plan", "predict", "prepare", "doctor", "lab.__main__")
    known = {"--no-tests"}  # of the doctor, not in its help
    for name in names:
        result = here(import_module(f"rest_triton.{name}").main, "--help", cwd=tmp_path)
        assert result.returncode == 0
        known |= set(re.findall(r"--[a-z][a-z-]*", result.stdout))
    wrong = {
        f"{path.name}: {name}"
        for path in RECIPES.parent.rglob("*.py")
        for name in flags_in(ast.parse(path.read_text())) - known - {flag(old) for old in RENAMED}
    }
    assert not wrong and "--run-dir" in known
    assert flags_in(ast.parse("f'give --history-folder {path}, or --lr 1'")) == {"--history-folder", "--lr"}


def test_help(tmp_path: Path) -> None:
    result = command("--help", cwd=tmp_path)
    assert result.returncode == 0 and len(result.stdout.split("\n\n")[0]) < 100  # not a usage of fifty flags
    for f in fields(Config):
        assert f"--{f.name.replace('_', '-')}" in result.stdout
    assert "(default: 40)" in result.stdout and "same|half|full" in result.stdout and "(default: off)" in result.stdout


def test_each_method_and_refresh_has_a_line_of_help(tmp_path: Path) -> None:
    assert list(ABOUT) == [*BASES, *(f"+{refresh}" for refresh in REFRESHES)]
    for name in ("train", "plan", "lab.__main__"):
        lines = here(import_module(f"rest_triton.{name}").main, "--help", cwd=tmp_path).stdout.splitlines()
        for method, about in ABOUT.items():
            assert f"  {method:<11} {about}" in lines and len(about) < 80


@pytest.mark.parametrize("module", ["config", "train"])
def test_torch_is_not_needed(module: str) -> None:
    code = f"import rest_triton.{module}, sys; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
