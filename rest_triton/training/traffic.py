"""Rows that a step moves between the model and tables or features in another place. Halos are guessed, as in the plan."""

from typing import TYPE_CHECKING

from ..methods.options import SAMPLING

if TYPE_CHECKING:
    from .memory import Run


def _refreshes(run: "Run") -> tuple[int, int]:
    """(refreshes in a step, rows that each computes)."""
    if run.s.rest == "rest" and run.s.refresh_batch == "full":
        return 1, run.z.nodes
    return (run.s.refreshes if run.s.rest else 0), run.refreshed


def table_rows(run: "Run", gradients: bool = False) -> int:
    """Rows of each table that a step reads and writes. gradients: of tables of gradients."""
    number, each = _refreshes(run)
    if gradients:
        number = run.s.gradient_frequency
    # A batch of REST-IS reads what its refreshes have just computed, on the device.
    read = 0 if run.s.rest == "rest-is" and run.s.base not in SAMPLING and not gradients else run.pulled
    pushed = 2 * run.halo * (run.s.base == "graphfm" and run.s.push_momentum > 0)
    return read + run.rows + pushed + number * (run.around(each) + each)


def feature_rows(run: "Run") -> tuple[int, int]:
    """Rows of (the features, their aggregate) that a step reads."""
    s, model, (number, each) = run.s, run.model, _refreshes(run)
    rows, halo = run.rows + number * each, run.halo + number * run.around(each)
    dropped = s.edge_dropout > 0 or (s.drop_input and s.dropout > 0)
    aggregated = model.aggregates_first and not dropped and run.halo > 0
    exact = s.first == "exact" and bool(model.tables)
    if not aggregated:  # all models but those that encode read features of the halo
        return rows + halo * (exact or not model.encodes), 0
    return rows * (s.model == "gin") + halo * (exact and s.model == "gin"), rows + halo * exact
