"""The studies by name."""

from ..study import Study
from .accuracy import ACCURACY, LAYERS, REGIMES
from .baselines import BASELINES
from .bound import BOUND
from .course import CONVERGENCE, ERROR, PERSISTENCE
from .first import FIRST
from .methods import METHODS
from .refresh import ACCUMULATION, EFFICIENCY, FREQUENCY, LEARNING_RATE, REFRESH_BATCH, STATISTICS
from .sweeps import SWEEPS

_ALL = (
    ACCURACY, CONVERGENCE, PERSISTENCE, ERROR, FREQUENCY, REFRESH_BATCH, LAYERS, LEARNING_RATE, ACCUMULATION, EFFICIENCY,
    BOUND, SWEEPS, REGIMES, STATISTICS, BASELINES, METHODS, FIRST,
)  # fmt: skip
STUDIES: dict[str, Study] = {study.name: study for study in _ALL}
