"""The studies by name."""

from ..study import Study
from .bound import BOUND
from .cost import ACCUMULATION, EFFICIENCY
from .course import CONVERGENCE, ERROR, PERSISTENCE
from .refreshes import FREQUENCY, LEARNING_RATE, REFRESH_BATCH
from .regimes import REGIMES
from .scores import ACCURACY, LAYERS

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        ACCURACY, CONVERGENCE, PERSISTENCE, ERROR, FREQUENCY, REFRESH_BATCH, LAYERS, LEARNING_RATE, ACCUMULATION, EFFICIENCY,
        BOUND, REGIMES,
    )
}  # fmt: skip

__all__ = ["STUDIES"]
