"""sparse_linear on the rows of a batch, against the product of dense rows and torch's products of sparse matrices.

The dense rows are made once and not timed: they are what a run without sparse features holds. WordNet's shape: a batch of
15,000 nodes, 5,000 words, 6 of them a node. Frequent words follow Zipf's law, as in a text.
"""

import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rest_triton.data.features import SparseRows

from .harness import OURS, Bench, Variant, against

ROWS, WIDTH = 15_000, 5_000


def words(rows: int, each: int, device: torch.device) -> SparseRows:
    g = torch.Generator().manual_seed(0)
    share = 1 / torch.arange(1, WIDTH + 1)
    index = torch.multinomial(share.expand(rows, WIDTH), each, generator=g).sort(1).values
    rowptr = torch.arange(0, rows * each + 1, each)
    return SparseRows(rowptr, index.flatten().int(), torch.rand(rows * each, generator=g), WIDTH).to(device)


@pytest.mark.parametrize("mode", ["forward", "both"])
@pytest.mark.parametrize("each", [6, 300], ids=["6 nonzeros a row", "300 nonzeros a row"])
def bench_sparse_linear(bench: Bench, each: int, mode: str) -> None:
    rows = ROWS // 100 if bench.tiny else ROWS
    x = words(rows, each, bench.device)
    weight = torch.randn(256, WIDTH, device=bench.device).requires_grad_()
    grad = torch.randn(rows, 256, device=bench.device) if mode == "both" else None
    dense = x.dense()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is in beta
        matrix = torch.sparse_csr_tensor(x.rowptr, x.index.long(), x.value, size=tuple(x.shape), check_invariants=False)

    def reduced() -> Tensor:
        return torch.sparse.mm(matrix, weight.t(), "sum")

    with torch.no_grad():
        wanted = [dense.double() @ weight.t().double()]
        if grad is not None:
            wanted.append(grad.t().double() @ dense.double())
    variants = [
        Variant(OURS, partial(x.linear, weight), (weight,)),
        Variant("dense rows", partial(F.linear, dense, weight), (weight,)),
        Variant("torch.sparse.mm", lambda: torch.sparse.mm(matrix, weight.t()), (weight,)),
    ]
    if bench.device.type == "cpu":
        variants.append(Variant("torch.sparse.mm(sum)", reduced, (weight,)))
    bench.op("sparse_linear", f"{rows:,} rows of {WIDTH:,}, {each} nonzeros", variants, against(*wanted), [], grad)
