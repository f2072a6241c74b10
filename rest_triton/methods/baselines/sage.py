"""GraphSAGE's neighbour sampling (Hamilton et al., 2017): every row reads a sample of its neighbours."""

from ...nn.model import HistoryGNN
from ..engine import Engine
from ..sampled.base import SampledMethod


class SAGE(SampledMethod):
    """Sampled neighbours without tables. The aggregate of all neighbours is what the sampled one is on average."""

    fills = False

    def begin(self, engine: Engine, step: int) -> None:
        """There are no tables."""

    def tables(self, model: HistoryGNN) -> dict[str, list[int]]:
        return {}
