"""Splits that --split makes."""

from pathlib import Path

import numpy as np
import pytest
import torch

from rest_triton.config import Config
from rest_triton.data.clusters import load_data
from rest_triton.data.datasets.splits import with_split
from rest_triton.data.graph import Graph
from rest_triton.training.trainer import Trainer
from rest_triton.utils.errors import UserError
from rest_triton.utils.split_text import names_a_split, parse_split

NODES, CLASSES = 200, 4


def graph(several: bool = False) -> Graph:
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(0, NODES, (2, 800), generator=draw)
    y = torch.randint(0, CLASSES, (NODES,), generator=draw)
    y[::10] = -1  # unknown
    if several:
        y = torch.randint(0, 2, (NODES, 3), generator=draw, dtype=torch.int8)
        y[::10] = -1
    return Graph.from_edges(edges, NODES, x=torch.randn(NODES, 5, generator=draw), y=y)


def sizes(made: Graph) -> list[int]:
    masks = made.train_mask, made.val_mask, made.test_mask
    return [0 if m is None else int(m.sum()) for m in masks]


@pytest.mark.parametrize("several", [False, True])
def test_random_shares_of_the_labelled_nodes(several: bool) -> None:
    """180 of 200 nodes have a label. The parts are disjoint, which Graph checks."""
    made = with_split(graph(several), "random:0.6/0.2/0.2")
    assert sizes(made) == [108, 36, 36]
    assert not bool((made.train_mask | made.val_mask | made.test_mask)[::10].any())  # type: ignore[operator]
    assert sizes(with_split(graph(several), "random:0.5/0.1/0.1")) == [90, 18, 18]
    assert sizes(with_split(graph(several), "random:0.5/0.1/rest")) == [90, 18, 72]
    third = with_split(graph(several), "random:0.333/0.333/0.334")
    assert sum(sizes(third)) == 180


def test_nodes_of_each_class() -> None:
    made = with_split(graph(), "per-class:7/50/30")
    assert sizes(made) == [7 * CLASSES, 50, 30]
    assert made.y is not None and made.train_mask is not None
    assert torch.bincount(made.y[made.train_mask]).tolist() == [7] * CLASSES
    assert sizes(with_split(graph(), "per-class:7/50/rest")) == [28, 50, 102]


@pytest.mark.parametrize("text", ["random:0.6/0.2/0.2", "per-class:7/50/rest"])
def test_the_seed_in_the_text_decides(text: str) -> None:
    a, b, c = (with_split(graph(), name) for name in (text, f"{text}@0", f"{text}@1"))
    for mask in ("train_mask", "val_mask", "test_mask"):
        assert torch.equal(getattr(a, mask), getattr(b, mask)) and not torch.equal(getattr(a, mask), getattr(c, mask))


def test_masks_of_a_file(tmp_path: Path) -> None:
    made, path = with_split(graph(), "random:0.6/0.2/0.2@5"), tmp_path / "split.npz"
    assert made.train_mask is not None and made.val_mask is not None
    np.savez(path, train_mask=made.train_mask.numpy(), val_mask=made.val_mask.numpy())
    read = with_split(graph(), str(path))
    assert torch.equal(read.train_mask, made.train_mask) and read.test_mask is None  # type: ignore[arg-type]
    np.savez(path, train_mask=made.train_mask.numpy())
    with pytest.raises(UserError, match=r"split\.npz has no val_mask; a split has train_mask and val_mask"):
        with_split(graph(), str(path))
    np.savez(path, train_mask=np.zeros(7, bool), val_mask=np.zeros(NODES, bool))
    with pytest.raises(UserError, match=r"train_mask of .*split\.npz is bool \[7\]; it must be bool \[200\]"):
        with_split(graph(), str(path))
    path.write_bytes(b"no zip")
    with pytest.raises(UserError, match=r"split\.npz', which cannot be read as an \.npz"):
        with_split(graph(), str(path))
    with pytest.raises(UserError, match=r"missing\.npz', and that file does not exist"):
        with_split(graph(), "missing.npz")


@pytest.mark.parametrize(
    "text",
    ["randm:1/1/1", "random:0.6/0.2", "random:a/b/c", "random:-0.1/0.5/0.5", "per-class:2.5/10/10", "random:0/0.5/0.5",
     "random:0.5/0/0.5", "random:0.6/0.2/0.2@x", "sixty"],
)  # fmt: skip
def test_texts_that_name_no_split(text: str) -> None:
    with pytest.raises(UserError, match=r"it must be a number, random:0\.6/0\.2/0\.2, per-class:20/500/1000, or the path"):
        parse_split(text)
    with pytest.raises(UserError, match="split is"):
        Config(dataset="cora", split=text)


def test_what_cannot_be_divided() -> None:
    with pytest.raises(UserError, match=r"its shares add up to 1\.2, and there is 1 to divide"):
        parse_split("random:0.6/0.3/0.3")
    with pytest.raises(UserError, match=r"but class 0 has .* labelled nodes; ask for at most as many"):
        with_split(graph(), "per-class:100/5/5")
    with pytest.raises(UserError, match=r"but 152 labelled nodes are left for 200 .*give per-class:7/100/rest"):
        with_split(graph(), "per-class:7/100/100")
    with pytest.raises(UserError, match="nodes have several labels each; give random"):
        with_split(graph(several=True), "per-class:7/10/10")
    with pytest.raises(UserError, match="has no labels to divide"):
        with_split(Graph.from_edges(torch.zeros(2, 0, dtype=torch.int64), 5), "random:0.6/0.2/0.2")


def test_numbers_are_still_numbers() -> None:
    assert [names_a_split(value) for value in (3, "3", "-1", "random:0.6/0.2/0.2")] == [False, False, False, True]
    assert Config(dataset="cora", split="3").split == 3
    assert Config(dataset="cora", split="random:0.6/0.2/0.2").split == "random:0.6/0.2/0.2"


def test_a_file_without_masks_trains_with_a_split(tmp_path: Path) -> None:
    """Without one it is refused, with the way out. The run's settings have the split, so it can be made again."""
    path, edges = tmp_path / "plain.npz", torch.randint(0, NODES, (2, 800))
    np.savez(path, edge_index=edges.numpy(), x=np.random.randn(NODES, 5).astype("f4"), y=graph().y.numpy())  # type: ignore[union-attr]
    config = Config(
        dataset=str(path), root=str(tmp_path), device="cpu", num_parts=4, batch_size=2, hidden_channels=8, partition="random"
    )
    with pytest.raises(
        UserError, match=r"no train_mask and no val_mask; .*; --split makes masks: random:0\.6/0\.2/0\.2, per"
    ):
        load_data(config)
    config = config.changed(split="random:0.6/0.2/0.2@3")
    loaded, again = load_data(config), load_data(Config.from_mapping({**vars(config)}, "a copy"))
    assert sizes(loaded.graph) == [108, 36, 36] and torch.equal(loaded.graph.val_mask, again.graph.val_mask)  # type: ignore[arg-type]
    assert "split: random:0.6/0.2/0.2@3" in config.to_yaml()
    trainer = Trainer(config, loaded)
    trainer.begin()
    trainer.epoch(1)
    assert set(trainer.evaluate()) == {"train", "val", "test"}
