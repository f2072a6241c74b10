"""The slots of a bounded cache: which row of its table belongs to which node."""

from typing import Any

import torch
from torch import Tensor

NONE = -1  # no slot, or no node


class Slots:
    """A ring of ``count`` slots. A node without a slot gets the next one, and the node that had it leaves.

    Args:
        num_nodes: of the graph. count: of slots. device: of the maps.

    ``slot_of`` is int32[N] and ``node_of`` int64[count]; where both are set, each is the inverse of the other. Streams take
    turns with them as with the table: a refresh waits for the step before, and a step reads the table after its refreshes.

    Example::

        slots = Slots(graph.num_nodes, 1000)
        places = slots.claim(nodes)  # at most 1000 nodes
        assert torch.equal(slots.node_of[places], nodes)
    """

    def __init__(self, num_nodes: int, count: int, device: torch.device | str = "cpu") -> None:
        self.slot_of = torch.full((num_nodes,), NONE, dtype=torch.int32, device=device)
        self.node_of = torch.full((count,), NONE, dtype=torch.int64, device=device)
        self.head = 0

    def __len__(self) -> int:
        return self.node_of.numel()

    def of(self, nodes: Tensor) -> Tensor:
        """int64[K]: the slots of nodes, -1 for those without."""
        return self.slot_of[nodes].long()

    def free(self, nodes: Tensor) -> Tensor:
        """int64[F]: the slots of nodes. They are free afterwards."""
        slots = self.of(nodes)
        slots = slots[slots != NONE]
        self.node_of[slots] = NONE
        self.slot_of[nodes] = NONE
        return slots

    def claim(self, nodes: Tensor) -> Tensor:
        """int64[K]: slots for distinct nodes, at most as many as there are. Those with a slot keep it."""
        slots = self.of(nodes)
        fresh = slots == NONE
        kept, wanted, count = slots[~fresh], int(fresh.sum()), len(self)
        # As many slots in turn as are needed if all kept ones are among them.
        turn = (self.head + torch.arange(min(count, wanted + kept.numel()), device=slots.device)) % count
        taken = turn[~torch.isin(turn, kept)][:wanted]
        before = self.node_of[taken]
        self.slot_of[before[before != NONE]] = NONE
        slots[fresh] = taken
        self.node_of[taken], self.slot_of[nodes] = nodes[fresh], slots.int()
        if wanted:
            self.head = (int(taken[-1]) + 1) % count
        return slots

    def state(self) -> dict[str, Any]:
        return {"node_of": self.node_of.cpu(), "head": self.head}

    def load(self, state: dict[str, Any]) -> None:
        self.node_of.copy_(state["node_of"])
        self.head = state["head"]
        self.slot_of.fill_(NONE)
        used = torch.nonzero(self.node_of != NONE).squeeze(1)
        self.slot_of[self.node_of[used]] = used.int()
