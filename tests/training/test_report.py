"""Pages and pictures from made-up runs."""

import base64
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import yaml

from rest_triton.training import figures
from rest_triton.training.report import read_run, write_report, write_summary

PNG = b"\x89PNG\r\n\x1a\n"
SETTINGS = dict(
    dataset="products", model="gcn", method="gas+rest", frequency=2, num_layers=3, hidden_channels=256, num_parts=40,
    batch_size=5, eval_updates_history=False, seed=0,
)  # fmt: skip
SUMMARY = dict(
    best_val=0.9, best_test=0.8, best_epoch=4, seconds=30.0, parameters=206895, machine="a machine",
    versions={"torch": "2.13"}, command="python -m rest_triton.train --seed 0", finished=True,
)  # fmt: skip


def epoch(number: int, evaluated: bool = True, **more: Any) -> dict[str, Any]:
    """Validation rises up to epoch 4 and falls from then on."""
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


class Reader(HTMLParser):
    """What a person sees of a page: its texts, the cells of its tables, and pictures as bytes. Tags must be balanced."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.rows: list[list[str]] = []
        self.pictures: list[bytes] = []
        self.links: list[str] = []
        self.feed(page.read_text())
        assert self.open == []
        self.text = " ".join(self.texts)
        self.table = {row[0]: row[1] for row in self.rows if len(row) > 1}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "img":
            source = given["src"] or ""
            assert source.startswith("data:image/png;base64,") and given["alt"]
            self.pictures.append(base64.b64decode(source.split(",")[1]))
        elif tag != "meta":
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "a":
            self.links.append(given["href"] or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.texts.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def drawn(folder: Path) -> set[str]:
    """Names of the pictures, each of which is one."""
    for picture in folder.glob("*.png"):
        data = picture.read_bytes()
        assert data.startswith(PNG) and len(data) > 5000, picture.name
    return {picture.stem for picture in folder.glob("*.png")}


def test_a_page_with_everything(tmp_path: Path) -> None:
    run = write_run(tmp_path, [epoch(n, error=0.5 / n) for n in range(1, 9)], SUMMARY)
    page = write_report(run)
    assert page == run / "report.html" and drawn(run) == {"loss", "accuracy", "age", "error", "time"}
    seen = Reader(page)
    beside = [(run / f"{name}.png").read_bytes() for name in ("loss", "accuracy", "age", "error", "time")]
    assert seen.pictures == beside
    assert "GCN on products, GAS + REST" in seen.texts
    assert (
        "A 3-layer GCN of width 256, trained on products by GAS + REST with 2 refreshes per step; "
        "5 of 40 clusters in a batch; seed 0." in seen.texts
    )
    expected = {
        "best validation accuracy": "90.00 % (epoch 4)", "test accuracy at best validation": "80.00 %", "epochs": "8",
        "training loss, last epoch": "0.2500", "mean row age, last epoch": "3.5 steps",
        "approximation error, last measured": "0.0625", "time": "30.0 s", "time of an epoch, median": "3.0 s",
        "peak memory": "3.0 GiB", "parameters": "206,895", "machine": "a machine", "versions": "torch 2.13",
    }  # fmt: skip
    assert expected.items() <= seen.table.items()
    assert {name: str(value) for name, value in SETTINGS.items() if name != "eval_updates_history"}.items() <= (
        seen.table.items()
    )
    assert seen.table["eval_updates_history"] == "false"
    assert SUMMARY["command"] in seen.texts and "prefers-color-scheme: dark" in page.read_text()
    assert not re.search(r'(src|href)="(?!data:)|url\(|@import', page.read_text())  # nothing is fetched from elsewhere


def test_sentences(tmp_path: Path) -> None:
    def sentence(**settings: Any) -> str:
        return Reader(write_report(write_run(tmp_path, [], SUMMARY, end="", **settings))).text

    assert "by GAS + REST-IS with each batch's halo refreshed in 1 piece; 5 of" in sentence(
        method="gas+rest-is", frequency=1
    )
    assert "by GAS; 5 of 40 clusters" in sentence(method="gas")
    assert "on products by full-batch training; seed 0." in sentence(method="full")
    assert "Evaluation wrote the histories, too" in sentence(eval_updates_history=True)
    assert "Evaluation wrote" not in sentence() and "with 1 refresh per step" in sentence(frequency=1)


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path, [epoch(1), epoch(2)], end='\n{"epoch": 3, "loss": 0.')
    assert [e["epoch"] for e in read_run(run).epochs] == [1, 2]
    seen = Reader(write_report(run))
    assert seen.table["epochs"] == "2" and "Not finished: epoch 2 was the last." in seen.text
    assert "To repeat it" not in seen.text
    whole = write_run(tmp_path, [epoch(1), epoch(2)], end="")
    assert [e["epoch"] for e in read_run(whole).epochs] == [1, 2]
    with (run / "metrics.jsonl").open("ab") as file:
        file.write('\n{"epoch": 3, "text": "ö'.encode()[:-1])  # within a character
    assert [e["epoch"] for e in read_run(run).epochs] == [1, 2]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path, [epoch(1)], end='\n{"epoch": 2, "lo{"epoch": 3}\n' + json.dumps(epoch(4)))
    with pytest.raises(ValueError, match=r"line 2 of .*metrics\.jsonl is not JSON: .*; remove it"):
        read_run(run)
    with pytest.raises(FileNotFoundError, match=r"nothing has neither config\.yaml nor"):
        write_report(tmp_path / "nothing")


def test_an_epoch_done_again_counts_once(tmp_path: Path) -> None:
    run = write_run(tmp_path, [epoch(1), epoch(2), epoch(3), epoch(2, loss=7.0), epoch(3, loss=5.0, val=None)])
    found = read_run(run)
    assert [(e["epoch"], e["loss"]) for e in found.epochs] == [(1, 2.0), (2, 7.0), (3, 5.0)]
    assert [e["epoch"] for e in found.evaluated] == [1, 2]


def test_one_epoch(tmp_path: Path) -> None:
    run = write_run(tmp_path, [epoch(1)])
    assert Reader(write_report(run)).table["best validation accuracy"] == "87.00 % (epoch 1)"
    assert drawn(run) == {"loss", "accuracy", "age", "time"}


def test_no_epoch(tmp_path: Path) -> None:
    (tmp_path / "accuracy.png").write_bytes(PNG)  # of an earlier report
    seen = Reader(write_report(write_run(tmp_path, [], end='{"epo')))
    assert "Not finished: no epoch was completed." in seen.text and seen.table["epochs"] == "0"
    assert drawn(tmp_path) == set() and seen.pictures == []
    (tmp_path / "metrics.jsonl").unlink()
    assert Reader(write_report(tmp_path)).table["epochs"] == "0"


def test_no_evaluation_and_full_batch(tmp_path: Path) -> None:
    epochs = [epoch(n, evaluated=False) for n in range(1, 4)]
    for e in epochs:
        del e["age"]
    run = write_run(tmp_path, epochs, method="full")
    seen = Reader(write_report(run))
    assert drawn(run) == {"loss", "time"} and len(seen.pictures) == 2
    assert not [name for name in seen.table if "validation" in name or "age" in name]


def test_some_evaluated_values_that_are_not_finite_and_zero_times(tmp_path: Path) -> None:
    epochs = [epoch(n, evaluated=n % 3 == 0, loss=float("nan"), time=dict(data=0.0)) for n in range(1, 8)]
    run = write_run(tmp_path, epochs)
    assert Reader(write_report(run)).table["best validation accuracy"] == "89.00 % (epoch 3)"
    assert drawn(run) == {"loss", "accuracy", "age", "time"}


def test_other_metric(tmp_path: Path) -> None:
    seen = Reader(write_report(write_run(tmp_path, [epoch(1)], SUMMARY | {"metric": "micro-F1"})))
    assert seen.table["best validation micro-F1"] == "90.00 % (epoch 4)" and "accuracy" not in seen.text


def test_html_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert('\"&</script>"
    more = SUMMARY | dict(machine=evil, command=f"train --dataset {evil}", versions={evil: evil})
    run = write_run(tmp_path / 'a"<b>', [epoch(1)], more, dataset=evil, seed=evil, note=evil, **{evil: evil})
    for page in (write_report(run), write_summary(tmp_path, [run])):
        assert "<script" not in page.read_text()
        seen = Reader(page)
        assert f"train --dataset {evil}" in seen.texts and seen.table["note"] == seen.table[evil] == evil
    assert seen.links == ['a"<b>/report.html']


def test_several_seeds(tmp_path: Path) -> None:
    best = [(0.90, 0.80), (0.92, 0.84), (0.91, 0.79)]
    runs = []
    for seed, (val, test) in enumerate(best):
        epochs = [epoch(n, val=val - 0.01 * abs(2 - n), test=test - 0.01 * abs(2 - n)) for n in range(1, 4 + seed)]
        ended = SUMMARY | dict(best_val=val, best_test=test, best_epoch=2)
        runs.append(write_run(tmp_path / f"seed{seed}", epochs, ended if seed < 2 else None, seed=seed))
    runs.append(write_run(tmp_path / "seed3", [epoch(1, evaluated=False)], seed=3))
    write_report(runs[1])
    page = write_summary(tmp_path, runs)
    seen = Reader(page)
    assert page == tmp_path / "report.html" and drawn(tmp_path) == {"accuracy"}
    assert seen.pictures == [(tmp_path / "accuracy.png").read_bytes()]
    table = [row for row in seen.rows if len(row) == 6]
    assert table[1] == ["0", "90.00 %", "80.00 %", "2", "30.0 s", "finished"]
    assert table[3] == ["2", "91.00 %", "79.00 %", "2", "15.0 s", "not finished: epoch 5 was the last"]
    assert table[4] == ["3", "-", "-", "-", "3.0 s", "not finished: epoch 1 was the last"]
    spread = [(sum((x - mean(of)) ** 2 for x in of) / 2) ** 0.5 for of in zip(*best, strict=True)]
    assert table[5][:3] == ["mean ± std of 3", f"91.00 ± {100 * spread[0]:.2f} %", f"81.00 ± {100 * spread[1]:.2f} %"]
    assert seen.links == ["seed1/report.html"]
    assert ["seed", "0, 1, 2, 3"] in seen.rows and ["num_parts", "40"] in seen.rows
    assert "; 4 seeds." in seen.text and seen.text.count("python -m rest_triton.train") == 1


def test_one_seed_and_none(tmp_path: Path) -> None:
    seen = Reader(write_summary(tmp_path / "new", [write_run(tmp_path / "seed0", [epoch(1)])]))
    assert ["mean of 1", "87.00 %", "77.00 %", "", "", ""] in seen.rows and drawn(tmp_path / "new") == {"accuracy"}
    seen = Reader(write_summary(tmp_path / "new", [write_run(tmp_path / "seed0", [])]))
    assert ["mean of 0", "-", "-", "", "", ""] in seen.rows and drawn(tmp_path / "new") == set()
    with pytest.raises(ValueError, match="runs is empty"):
        write_summary(tmp_path, [])


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures themselves, as they are drawn."""
    kept: list[Any] = []
    save = figures.png_of

    def keep(figure: Any) -> bytes:
        kept.append(figure)
        return save(figure)

    monkeypatch.setattr(figures, "png_of", keep)
    return kept


def curves(panel: Any) -> dict[str, tuple[list[float], list[float]]]:
    """x and y of the lines in a panel, by label."""
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in panel.get_lines()}


def test_what_is_drawn(shown: list[Any], tmp_path: Path) -> None:
    epochs = [epoch(n, evaluated=n % 2 == 0, seconds=100.0 * n) for n in range(1, 7)]
    del epochs[5]["train"], epochs[2]["loss"]
    epochs[3] |= dict(error=0.25, time=dict(data=1.0, train=2.0))
    write_report(write_run(tmp_path, epochs))
    loss, accuracy, age, error, time = shown
    for figure in shown:
        assert all(panel.get_xlabel() for panel in figure.axes) and figure.axes[0].get_ylabel()
    assert [panel.get_xlabel() for panel in loss.axes] == ["epoch", "time with evaluation (minutes)"]
    ((x, y),) = curves(loss.axes[0]).values()
    assert x == [1, 2, 4, 5, 6] and y == [2.0, 1.0, 0.5, 0.4, 2 / 6]
    ((minutes, same),) = curves(loss.axes[1]).values()
    assert minutes == pytest.approx([n * 100 / 60 for n in x]) and same == y
    left, right = map(curves, accuracy.axes)
    assert left["validation"] == ([2, 4, 6], pytest.approx([88, 90, 88]))
    assert left["test"][1] == pytest.approx([78, 80, 78]) and left["training"][1] == pytest.approx(
        [95, 95, math.nan], nan_ok=True
    )
    assert left["best validation, epoch 4"] == ([4, 4], pytest.approx([90, 80]))
    assert right["best validation, epoch 4"][0] == pytest.approx([400 / 60] * 2)
    assert [text.get_text() for text in accuracy.legends[0].get_texts()] == [
        "training", "validation", "test", "best validation, epoch 4",
    ]  # fmt: skip
    assert list(curves(age.axes[0]).values()) == [([1, 2, 3, 4, 5, 6], [3.5] * 6)] and age.axes[0].get_ylim()[0] == 0
    assert list(curves(error.axes[0]).values()) == [([4], [0.25])]
    steps = {patch.get_label(): patch.get_data() for patch in time.axes[0].patches}
    assert list(steps) == ["data 8 %", "refresh 14 %", "train 53 %", "evaluation 25 %"]
    assert list(steps["evaluation 25 %"].values) == pytest.approx([3, 3, 3, 3, 3, 3])
    assert list(steps["train 53 %"].baseline) == pytest.approx([0.6, 0.6, 0.6, 1.0, 0.6, 0.6])
    assert list(steps["data 8 %"].edges) == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5]


def test_the_mean_of_seeds(shown: list[Any], tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", [epoch(n, val=0.5, test=0.25) for n in (1, 2, 3)])
    second = write_run(tmp_path / "b", [epoch(n, evaluated=n > 1) | dict(loss=1.0) for n in (1, 2)])
    write_summary(tmp_path, [first, second])
    validation, test = map(curves, shown[0].axes)
    assert [panel.get_title(loc="left") for panel in shown[0].axes] == ["validation", "test"]
    assert validation["one seed"] == ([1, 2, 3], [50, 50, 50]) and validation["mean of 2"] == ([2], [pytest.approx(69)])
    assert test["mean of 2"] == ([2], [pytest.approx((25 + 78) / 2)])
    widths = {line.get_label(): line.get_linewidth() for line in shown[0].axes[0].get_lines()}
    assert widths["mean of 2"] > 2 * widths["one seed"] and len(shown[0].axes[0].get_lines()) == 3


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", [epoch(1), epoch(2)], SUMMARY)
    write_report(run)
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for page in (write_report(run), write_summary(tmp_path, [run])):
        seen = Reader(page)
        assert "There are no pictures: matplotlib cannot be imported" in seen.text
        assert seen.pictures == [] and drawn(page.parent) == set() and "Settings" in seen.texts


def test_the_program_around_us_is_left_alone(tmp_path: Path) -> None:
    """No pyplot, which would choose a backend; no torch; no matplotlib before there is something to draw."""
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
