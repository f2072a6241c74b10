"""Launch settings: pure functions of width, alignment and dtypes."""

from itertools import product

import pytest
import torch

from rest_triton.kernels.gpu.launch import (
    activate_settings,
    attention_settings,
    copy_settings,
    edge_grad_settings,
    row_alignment,
    row_vector,
    spmm_settings,
)

WIDTHS = [1, 2, 3, 16, 32, 47, 64, 100, 128, 129, 256, 300, 1000, 4096]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("lanes", [32, 64])
@pytest.mark.parametrize("dtypes", [(torch.float32,), (torch.bfloat16,), (torch.float32, torch.float16)])
def test_spmm_tiles_divide_evenly(dtypes: tuple, lanes: int) -> None:
    for width, align in product(WIDTHS, (2, 4, 8, 16)):
        s = spmm_settings(width, align, *dtypes, lanes=lanes)
        for size in (s.BLOCK_D, s.K, s.GROUP, s.EDGES):
            assert size > 0
            assert size & (size - 1) == 0, f"Triton's tiles are powers of two (width {width}, alignment {align})"
        assert lanes == s.EDGES
        assert s.EDGES % s.K == 0
        assert s.K % s.GROUP == 0
        assert s.BLOCK_D * max(dtype.itemsize for dtype in dtypes) <= 512
        assert s.K * s.BLOCK_D * sum(dtype.itemsize for dtype in dtypes) <= 4096


@pytest.mark.parametrize(
    ("width", "dtype", "block_d", "k", "group"),
    [(128, torch.float32, 128, 8, 1), (256, torch.float32, 128, 8, 1), (128, torch.bfloat16, 128, 16, 2),
     (256, torch.bfloat16, 256, 8, 1), (300, torch.bfloat16, 256, 8, 1), (32, torch.float32, 32, 32, 4)],
)  # fmt: skip
def test_spmm_reads_a_row_with_one_load_per_lane(width: int, dtype: torch.dtype, block_d: int, k: int, group: int) -> None:
    s = spmm_settings(width, 16, dtype)
    assert (block_d, k, group) == (s.BLOCK_D, s.K, s.GROUP)
    # One lane's 16 bytes, times the lanes, are GROUP rows.
    assert group * block_d * dtype.itemsize == 512


def test_the_order_of_dtypes_does_not_matter() -> None:
    assert spmm_settings(128, 16, torch.float32, torch.bfloat16) == spmm_settings(128, 16, torch.bfloat16, torch.float32)


def test_edge_grad_takes_the_tiles_of_spmm() -> None:
    a, b = spmm_settings(128, 16, torch.float32), edge_grad_settings(128, 16, torch.float32)
    assert (a.BLOCK_D, a.EDGES, a.K) == (b.BLOCK_D, b.EDGES, b.K)
    assert "GROUP" not in b.constants


@pytest.mark.parametrize("lanes", [32, 64])
@pytest.mark.parametrize("dtypes", [(torch.float32,), (torch.bfloat16,), (torch.float32, torch.float16)])
@pytest.mark.parametrize(
    ("heads", "channels"), [(1, 1), (3, 1), (8, 8), (5, 3), (1, 47), (4, 32), (3, 128), (1, 300), (1, 4096)]
)
def test_attention_tiles_hold_whole_heads(heads: int, channels: int, dtypes: tuple, lanes: int) -> None:
    for align in (2, 4, 16):
        s = attention_settings(heads, channels, align, *dtypes, lanes=lanes)
        for size in (s.BLOCK_D, s.BLOCK_H, s.K):
            assert size > 0
            assert size & (size - 1) == 0, "Triton's tiles are powers of two"
        assert channels <= s.BLOCK_D // s.BLOCK_H, "a head's features are summed within one program"
        assert 2 <= s.K <= 32
        assert not s.fused, "lanes exchange products"


@pytest.mark.parametrize("settings", [copy_settings, activate_settings])
def test_row_tiles_fill_their_warps(settings) -> None:
    for width, vector in product(WIDTHS, (1, 2, 4, 8)):
        s = settings(width, vector)
        assert s.num_warps * 32 <= s.BLOCK_R * s.BLOCK_D, (width, vector)


@pytest.mark.parametrize("dtype", DTYPES)
def test_alignment_is_that_of_every_row(dtype: torch.dtype) -> None:
    size = dtype.itemsize
    base = torch.zeros(8, 64, dtype=dtype)
    assert row_alignment(base) == 16
    assert row_alignment(base[:, 1:]) == size, "the first row starts off"
    assert row_alignment(torch.zeros(8, 47, dtype=dtype)) == size, "the second row starts off"
    assert row_alignment(torch.zeros(8, 100, dtype=dtype)) == (16 if size == 4 else 8)
    assert row_alignment(base, None, base[:, 1:]) == size


def test_a_lane_holds_the_same_elements_of_every_matrix() -> None:
    wide, narrow = torch.zeros(4, 128), torch.zeros(4, 128, dtype=torch.bfloat16)
    assert row_vector(narrow) == 8
    assert row_vector(wide) == 4
    assert row_vector(wide, narrow, None) == 4
    assert row_vector(wide[:, 1:], narrow) == 1
