"""Reports of made-up runs, and of one that an older version wrote."""

import base64
import json
import math
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml

from rest_triton.training import plots
from rest_triton.training.report import partition_text, read_run, write_report, write_summary
from rest_triton.utils.errors import UserError

from .resuming import Data

PNG = b"\x89PNG\r\n\x1a\n"
SETTINGS = dict(dataset="products", model="gcn", method="gas+rest", frequency=2, num_parts=40, partition="metis", seed=0)
SUMMARY = dict(
    best_val=0.9, best_test=0.8, best_epoch=4, seconds=30.0, parameters=206895, machine="a machine",
    versions={"torch": "2.13"}, command="python -m rest_triton.train --seed 0", finished=True,
)  # fmt: skip
PARTITION = dict(
    asked="metis", method="stream", fallback="METIS ran out of memory", cut=0.123, balance=1.034, num_parts=40, largest=9
)


def epoch(number: int, evaluated: bool = True, **more: Any) -> dict[str, Any]:
    """Validation rises up to epoch 4 and then falls."""
    known: dict[str, Any] = dict(epoch=number, step=8 * number, seconds=3.0 * number, loss=2.0 / number, age=3.5)
    known |= dict(time=dict(data=0.1, refresh=0.5, train=1.5, evaluation=0.9), memory=3 << 30)
    if evaluated:
        known |= dict(train=0.95, val=0.9 - 0.01 * abs(4 - number), test=0.8 - 0.01 * abs(4 - number))
    return known | more


def write_run(
    folder: Path, epochs: list[dict[str, Any]], summary: dict[str, Any] | None = None, end: str = "\n", **settings: Any
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(SETTINGS | settings))
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, epochs)) + end)
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def rows(page: Path) -> list[list[str]]:
    """The cells of all tables of a page."""
    each = re.findall(r"<tr>(.*?)</tr>", page.read_text(), re.S)
    return [[unescape(cell) for cell in re.findall(r"<t[hd]>(.*?)</t[hd]>", row, re.S)] for row in each]


def table(page: Path) -> dict[str, str]:
    return {row[0]: row[1] for row in rows(page)}


def drawn(page: Path) -> set[str]:
    """The names of the PNG files beside a page, which are also in the page."""
    files = {path.stem: path.read_bytes() for path in page.parent.glob("*.png")}
    inside = {base64.b64decode(data) for data in re.findall(r'src="data:image/png;base64,([^"]+)"', page.read_text())}
    assert inside == set(files.values()) and all(data.startswith(PNG) and len(data) > 5000 for data in inside)
    return set(files)


def test_a_page_with_everything(tmp_path: Path) -> None:
    run = write_run(tmp_path, [epoch(n, error=0.5 / n) for n in range(1, 9)], SUMMARY | {"partition": PARTITION})
    page = write_report(run)
    assert page == run / "report.html" and drawn(page) == {"loss", "accuracy", "age", "error", "time"}
    expected = {
        "state": "finished", "best validation accuracy": "90.00 % (epoch 4)", "test accuracy at best validation": "80.00 %",
        "epochs": "8", "training loss, last epoch": "0.2500", "mean row age, last epoch": "3.5 steps",
        "approximation error, last measured": "0.0625", "time": "30.0 s", "time of an epoch, median": "3.0 s",
        "peak memory": "3.0 GiB", "parameters": "206,895", "machine": "a machine", "versions": "torch 2.13",
        "command": SUMMARY["command"],
    }  # fmt: skip
    shown = table(page)
    assert expected.items() <= shown.items()
    assert {name: str(value) for name, value in SETTINGS.items()}.items() <= shown.items()
    assert ["partition", partition_text(PARTITION)] in rows(page)
    text = page.read_text()
    assert "<h1>products, gcn, gas+rest</h1>" in text
    assert not re.search(r'(src|href)="(?!data:)|url\(|@import', text)  # the page needs no other file


def test_the_partition_that_ran() -> None:
    assert partition_text(PARTITION) == (
        "stream instead of metis (METIS ran out of memory), 40 clusters, 12.3 % of edges cut, balance 1.03"
    )
    assert partition_text(dict(asked="metis", method="metis", fallback=None, cut=0.5, balance=1, num_parts=4)) == (
        "metis, 4 clusters, 50.0 % of edges cut, balance 1.00"
    )
    assert partition_text({"method": "random", "parts": 3}) == "random, 3 clusters"
    auto = dict(asked="auto", method="kaminpar", fallback=None, num_parts=4, cut=0.5, balance=1, halo_per_row=0.4567)
    assert partition_text(auto) == (
        "kaminpar, 4 clusters, 50.0 % of edges cut, balance 1.00, 0.46 halo rows per row of a batch"
    )
    assert partition_text(dict(asked="auto", method="metis", fallback="KaMinPar failed", num_parts=4)) == (
        "metis (KaMinPar failed), 4 clusters"
    )


def test_a_run_of_an_older_version(tmp_path: Path) -> None:
    """A run of an older version: with old names of settings and its own TensorBoard file."""
    (tmp_path / "config.yaml").write_text(
        "dataset: synthetic:arxiv@0.05\nparts: 6\nper_batch: 2\nmodel: gcn\nmethod: gas+rest\nfrequency: 1\nseed: 0\n"
    )
    (tmp_path / "metrics.jsonl").write_text(
        '{"epoch": 1, "step": 3, "steps": 3, "loss": 1.159, "age": 0.333, "frequency": 1.0, "train": 0.88, "val": 0.9, '
        '"test": 0.852, "best_val": 0.9, "best_test": 0.852, "seconds": 2.22, "time": {"data": 0.0003, "refresh": 0.0015, '
        '"train": 2.2105, "evaluation": 0.0008}, "memory": 658386944}\n'
        '{"epoch": 2, "step": 6, "steps": 3, "loss": null, "age": 0.389, "frequency": 1.0, "train": 0.88, "val": 0.9, '
        '"test": 0.852, "error": 0.2072, "stale_val": 0.9, "staleness": [0.224, 0.35], "staleness_relative": [0.09, 0.198], '
        '"best_val": 0.9, "best_test": 0.852, "seconds": 2.25, "time": {"data": 0.0001, "refresh": 0.0012, "train": 0.0086, '
        '"evaluation": 0.0064}, "memory": 658386944}\n'
    )
    (tmp_path / "summary.json").write_text(
        '{"best_val": 0.9, "best_test": 0.852, "best_epoch": 1, "metric": "accuracy", "seconds": 2.289, "parameters": 612, '
        '"seed": 0, "memory": 658386944, "machine": "a machine", "command": "python -m rest_triton.train --parts 6", '
        '"versions": {"rest_triton": "0.1.0"}, "epochs": 2, "finished": true}'
    )
    (tmp_path / "events.out.tfevents.1.host.1").write_bytes(b"curves")
    shown = table(write_report(tmp_path))
    assert (shown["state"], shown["parts"], shown["per_batch"]) == ("finished", "6", "2")
    assert shown["best validation accuracy"] == "90.00 % (epoch 1)" and "partition" not in shown
    assert drawn(tmp_path / "report.html") == {"loss", "accuracy", "age", "error", "time"}
    assert (tmp_path / "events.out.tfevents.1.host.1").read_bytes() == b"curves"


def test_a_run_that_was_killed(tmp_path: Path) -> None:
    """A last line that was cut off, also within a character, is left out."""
    run = write_run(tmp_path, [epoch(1), epoch(2)], end='\n{"epoch": 3, "loss": 0.')
    assert [e["epoch"] for e in read_run(run).epochs] == [1, 2]
    shown = table(write_report(run))
    assert shown["state"] == "not finished, 2 epochs done" and "command" not in shown
    with (run / "metrics.jsonl").open("ab") as file:
        file.write("ö".encode()[:-1])
    assert [e["epoch"] for e in read_run(run).epochs] == [1, 2]
    whole = write_run(tmp_path, [epoch(1), epoch(2)], end="")
    assert [e["epoch"] for e in read_run(whole).epochs] == [1, 2]


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path, [epoch(1)], end='\n{"epoch": 2, "lo{"epoch": 3}\n' + json.dumps(epoch(4)))
    with pytest.raises(UserError, match=r"line 2 of .*metrics\.jsonl is not JSON: .*; delete"):
        read_run(run)
    with pytest.raises(UserError, match=r"nothing has neither config\.yaml nor metrics\.jsonl; name"):
        write_report(tmp_path / "nothing")


def test_an_epoch_that_was_trained_again_counts_once(tmp_path: Path) -> None:
    run = write_run(tmp_path, [epoch(1), epoch(2), epoch(3), epoch(2, loss=7.0), epoch(3, loss=5.0, val=None)])
    found = read_run(run)
    assert [(e["epoch"], e["loss"]) for e in found.epochs] == [(1, 2.0), (2, 7.0), (3, 5.0)]
    assert [e["epoch"] for e in found.evaluated] == [1, 2]


def test_few_epochs(tmp_path: Path) -> None:
    page = write_report(write_run(tmp_path, [epoch(1)]))
    assert table(page)["best validation accuracy"] == "87.00 % (epoch 1)"
    assert drawn(page) == {"loss", "accuracy", "age", "time"}
    write_report(write_run(tmp_path, [], end='{"epo'))  # removes the plots of the earlier report
    assert drawn(page) == set() and table(page)["state"] == "not finished, 0 epochs done"
    (tmp_path / "metrics.jsonl").unlink()
    assert table(write_report(tmp_path))["epochs"] == "0"


def test_full_batch_training_without_evaluation(tmp_path: Path) -> None:
    epochs = [epoch(n, evaluated=False, age=None) for n in range(1, 4)]
    page = write_report(write_run(tmp_path, epochs, method="full"))
    assert drawn(page) == {"loss", "time"}
    assert not [name for name in table(page) if "validation" in name or "age" in name]


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    nan = float("nan")
    epochs = [epoch(n, n % 3 == 0, loss=nan, error=math.inf, time=dict(data=0.0), test=nan) for n in range(1, 8)]
    page = write_report(write_run(tmp_path, epochs))
    assert table(page)["best validation accuracy"] == "89.00 % (epoch 3)"
    assert table(page)["test accuracy at best validation"] == "-" and len(drawn(page)) == 5


def test_another_metric(tmp_path: Path) -> None:
    page = write_report(write_run(tmp_path, [epoch(1)], SUMMARY | {"metric": "micro-F1"}))
    assert table(page)["best validation micro-F1"] == "90.00 % (epoch 4)"


def test_html_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert('\"&</script>"
    more = SUMMARY | dict(machine=evil, command=f"train --dataset {evil}", versions={evil: evil}, partition={"method": evil})
    run = write_run(tmp_path / 'a"<b>', [epoch(1)], more, dataset=evil, seed=evil, note=evil, **{evil: evil})
    for page in (write_report(run), write_summary(tmp_path, [run])):
        assert "<script" not in page.read_text()
        assert table(page)["note"] == table(page)[evil] == evil


def test_several_seeds(tmp_path: Path) -> None:
    best, runs = [(0.90, 0.80), (0.92, 0.84), (0.91, 0.79)], []
    for seed, (val, test) in enumerate(best):
        epochs = [epoch(n, val=val - 0.01 * abs(2 - n), test=test - 0.01 * abs(2 - n)) for n in range(1, 4 + seed)]
        ended = SUMMARY | dict(best_val=val, best_test=test, best_epoch=2, partition=PARTITION)
        runs.append(write_run(tmp_path / f"seed-{seed}", epochs, ended if seed < 2 else {"partition": {}}, seed=seed))
    runs.append(write_run(tmp_path / "seed-3", [epoch(1, evaluated=False)], seed=3))
    page = write_summary(tmp_path, runs)
    assert page == tmp_path / "report.html" and drawn(page) == {"accuracy"}
    shown = rows(page)
    assert shown[1] == ["0", "90.00 %", "80.00 %", "2", "30.0 s", "finished", "seed-0"]
    assert shown[3] == ["2", "91.00 %", "79.00 %", "2", "15.0 s", "not finished, 5 epochs done", "seed-2"]
    assert shown[4] == ["3", "-", "-", "-", "3.0 s", "not finished, 1 epochs done", "seed-3"]
    spread = (((0.80 - 0.81) ** 2 + (0.84 - 0.81) ** 2 + (0.79 - 0.81) ** 2) / 2) ** 0.5  # unbiased
    assert shown[5][:3] == ["mean ± std of 3", "91.00 ± 1.00 %", f"81.00 ± {100 * spread:.2f} %"]
    assert ["seed", "0, 1, 2, 3"] in shown and ["num_parts", "40"] in shown
    assert [row for row in shown if row[0] == "partition"] == [
        ["partition", partition_text(PARTITION)],
        ["partition", "metis"],
    ]


def test_one_seed_and_none(tmp_path: Path) -> None:
    page = write_summary(tmp_path / "new", [write_run(tmp_path / "seed0", [epoch(1)])])
    assert rows(page)[2][:3] == ["mean ± std of 1", "87.00 %", "77.00 %"] and drawn(page) == {"accuracy"}
    page = write_summary(tmp_path / "new", [write_run(tmp_path / "seed0", [])])
    assert rows(page)[2][:3] == ["mean ± std of 0", "-", "-"] and drawn(page) == set()
    with pytest.raises(ValueError, match="runs is empty"):
        write_summary(tmp_path, [])


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The matplotlib figures that are drawn."""
    kept: list[Any] = []
    save = plots.png_of
    monkeypatch.setattr(plots, "png_of", lambda figure: kept.append(figure) or save(figure))
    return kept


def lines(figure: Any) -> dict[str, tuple[list[float], list[float]]]:
    """x and y of the lines in a figure, by label."""
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in figure.axes[0].get_lines()}


def test_what_is_drawn(figures: list[Any], tmp_path: Path) -> None:
    epochs = [epoch(n, evaluated=n % 2 == 0) for n in range(1, 7)]
    del epochs[5]["train"], epochs[2]["loss"]
    epochs[3] |= dict(error=0.25, time=dict(data=1.0, train=2.0))
    write_report(write_run(tmp_path, epochs))
    loss, accuracy, age, error, time = figures
    assert all(figure.axes[0].get_xlabel() == "epoch" and figure.axes[0].get_ylabel() for figure in figures)
    assert lines(loss)["loss"] == ([1, 2, 4, 5, 6], [2.0, 1.0, 0.5, 0.4, 2 / 6])
    scores = lines(accuracy)
    assert scores["val"] == ([2, 4, 6], pytest.approx([88, 90, 88])) and scores["train"] == ([2, 4], [95, 95])
    assert scores["test"][1] == pytest.approx([78, 80, 78]) and scores["best val, epoch 4"][0] == [4, 4]
    assert [text.get_text() for text in accuracy.legends[0].get_texts()] == ["train", "val", "test", "best val, epoch 4"]
    assert lines(age)["age"] == ([1, 2, 3, 4, 5, 6], [3.5] * 6) and age.axes[0].get_ylim()[0] == 0
    assert lines(error)["error"] == ([4], [0.25]) and 0.25 < error.axes[0].get_ylim()[1] < 0.3
    steps = {patch.get_label(): patch.get_data() for patch in time.axes[0].patches}
    assert list(steps) == ["data 8 %", "refresh 14 %", "train 53 %", "evaluation 25 %"]
    assert list(steps["evaluation 25 %"].values) == pytest.approx([3, 3, 3, 3, 3, 3])
    assert list(steps["train 53 %"].baseline) == pytest.approx([0.6, 0.6, 0.6, 1.0, 0.6, 0.6])


def test_the_mean_of_seeds(figures: list[Any], tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", [epoch(n, val=0.5, test=0.25) for n in (1, 2, 3)])
    second = write_run(tmp_path / "b", [epoch(n, evaluated=n > 1) for n in (1, 2)])
    write_summary(tmp_path, [first, second])
    shown = lines(figures[0])
    assert shown["val, mean of 2"] == ([2], [pytest.approx((50 + 88) / 2)])
    assert shown["test, mean of 2"] == ([2], [pytest.approx((25 + 78) / 2)])
    thin = [line for line in figures[0].axes[0].get_lines() if line.get_linewidth() < 1]
    assert [list(line.get_xdata()) for line in thin] == [[1, 2, 3], [2], [1, 2, 3], [2]]


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", [epoch(1), epoch(2)], SUMMARY)
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for page in (write_report(run), write_summary(tmp_path, [run])):
        assert "No plots: matplotlib cannot be imported" in page.read_text()
        assert drawn(page) == set() and table(page)["num_parts"] == "40"


def test_what_is_imported(tmp_path: Path) -> None:
    """A report imports neither torch nor pyplot, which would choose a backend, and matplotlib only for plots."""
    run = write_run(tmp_path, [epoch(1), epoch(2, error=1.0)])
    program = (
        "import sys; from pathlib import Path; from rest_triton.training.report import write_report;"
        "assert 'matplotlib' not in sys.modules; write_report(Path(sys.argv[1]));"
        "assert not {'torch', 'matplotlib.pyplot'} & set(sys.modules);"
        "from matplotlib import rcParams as now, rcParamsOrig as before;"
        "assert all(now[name] == before[name] for name in before if name != 'backend')"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program, str(run)], check=True)
    assert (run / "error.png").exists()


@pytest.mark.parametrize(("method", "of_clusters"), [("gas", True), ("cluster", True), ("mvs", False), ("full", False)])
def test_halos_are_those_of_batches_of_clusters(method: str, of_clusters: bool, tmp_path: Path) -> None:
    """Other batches have no clusters, so the summary does not have the size of their halos."""
    data = Data.make(tmp_path)
    data.run(data.config(method=method, epochs=1, save_history=False), tmp_path / "run")
    summary = read_run(tmp_path / "run").summary["partition"]
    assert ("halo_per_row" in summary) == of_clusters and summary["method"] == "metis"
