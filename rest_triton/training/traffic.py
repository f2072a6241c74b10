"""Rows that a step moves between the model and tables or features in another place. Halos are guessed, as in the plan."""

from typing import TYPE_CHECKING

from ..methods.options import SAMPLING
from ..utils.dtypes import DTYPES

if TYPE_CHECKING:
    from .memory import Run


def _refreshes(run: "Run") -> tuple[int, int]:
    """(refreshes in a step, rows that each computes)."""
    if run.s.rest == "rest" and run.s.refresh_batch == "full":
        return 1, run.z.nodes
    return (run.s.refreshes if run.s.rest else 0), run.refreshed


def _pushes(run: "Run") -> bool:
    return run.s.base == "graphfm" and run.s.push_momentum > 0


def table_bytes(run: "Run", gradients: bool = False) -> int:
    """Bytes of rows of tables that a step reads and writes. gradients: of tables of gradients."""
    if run.direct:
        return 0
    number, each = _refreshes(run)
    backward = run.s.gradient_frequency  # refreshes that also read the last table, and those of gradients
    # A batch of REST-IS reads what its refreshes have just computed, on the device.
    read = 0 if run.s.rest == "rest-is" and run.s.base not in SAMPLING and not gradients else run.pulled
    tables, size = run.gradients if gradients else run.tables, 0
    for index, table in enumerate(tables):
        last = index == len(tables) - 1
        written = run.rows + (backward if gradients else number) * each
        written += run.halo * (_pushes(run) and index >= run.model.encodes)
        around = (backward if gradients or last else number) * run.around(each)
        size += (read + written + around) * table.width * DTYPES[table.dtype].itemsize
    return size


def feature_rows(run: "Run") -> tuple[int, int]:
    """Rows of (the features, their aggregate) that a step reads."""
    s, model, (number, each) = run.s, run.model, _refreshes(run)
    rows, halo = run.rows + number * each, run.halo + number * run.around(each)
    exact, gin = s.first == "exact" and bool(model.tables), s.model == "gin"  # GIN reads rows beside their aggregate
    dropped = s.edge_dropout > 0 or (s.drop_input and s.dropout > 0)
    if not model.aggregates_first or dropped or run.halo == 0:
        return rows * (1 + gin) + halo * (exact or not model.encodes), 0
    pushed = (run.rows + run.halo * gin) * _pushes(run)
    return (rows + halo * exact) * gin + pushed, rows + halo * exact
