"""Edges and features of synthetic graphs, on a CPU.

Every random number is a hash of a seed and an index, so the number of threads does not change the result.
"""

import numpy as np
import torch
from numba import njit

from .hashing import counter_word
from .intrinsics import double_of_word, load_f32, load_i32, load_i64, next_ticket, store_f32, store_i32
from .pool import Task, chunk_size

COUNT, CHUNK, KEY = 1, 2, 3
OWNER, STUBS, BLOCK_SIZE, BLOCK_CLASS, CLASS_BLOCKS, NODES, FACTOR, OFFSET, LOCAL, SAME_CLASS, SOURCE, TARGET = range(4, 16)
WIDTH, SIGNAL, CENTRES, LATENT, X_FACTOR, X_OFFSET, X = range(4, 11)

TRIES = 8  # attempts to draw a neighbour other than the node itself, and to avoid the hub of its block


@njit(forceinline=True)
def scramble(i, factor, offset, nodes):
    """The id of node i of the block order: a permutation, as factor and nodes have no common divisor."""
    return (i * factor + offset) % nodes


@njit(forceinline=True)
def below(word, limit):
    """A number in [0, limit), limit < 2^32, from the upper half of a random word."""
    return np.int64(((word >> np.uint64(32)) * np.uint64(limit)) >> np.uint64(32))


@Task
def edges_task(block):
    """Draw a partner for every stub: uniformly from the stubs of its block, of its class or of the graph."""
    count, chunk, key, owner, stubs = block[COUNT], block[CHUNK], block[KEY], block[OWNER], block[STUBS]
    size, nodes, factor, offset = block[BLOCK_SIZE], block[NODES], block[FACTOR], block[OFFSET]
    local_share, class_share = double_of_word(block[LOCAL]), double_of_word(block[SAME_CLASS])
    while True:
        begin = next_ticket(block) * chunk
        if begin >= count:
            break
        for s in range(begin, min(begin + chunk, count)):
            i = np.int64(load_i32(owner + 4 * s))
            b = i // size
            c = np.int64(load_i32(block[BLOCK_CLASS] + 4 * b))
            degree = load_i64(stubs + 8 * (i + 1)) - load_i64(stubs + 8 * i)
            # A hub would draw its whole block several times: it draws less from its block.
            near = min(local_share, 0.25 * size / degree)
            draw = (counter_word(key, 2 * s) >> np.uint64(11)) * (1.0 / (1 << 53))
            low, high = 0, nodes
            if draw < near:
                low, high = b * size, min((b + 1) * size, nodes)
            elif draw < near + class_share:
                low = np.int64(load_i32(block[CLASS_BLOCKS] + 4 * c)) * size
                high = min(np.int64(load_i32(block[CLASS_BLOCKS] + 4 * (c + 1))) * size, nodes)
            first = load_i64(stubs + 8 * low)
            limit = load_i64(stubs + 8 * high) - first
            word = counter_word(key, 2 * s + 1)
            # A node counts as at most a fiftieth of its block. Otherwise its block would draw a hub again and again.
            most = limit // 50 + 1 if draw < near else limit
            j = i
            for attempt in range(TRIES):
                j = np.int64(load_i32(owner + 4 * (first + below(word, limit))))
                word = counter_word(word, attempt)
                if j != i and below(word, load_i64(stubs + 8 * (j + 1)) - load_i64(stubs + 8 * j)) < most:
                    break
            if j == i:
                j = (i + 1) % nodes
            store_i32(block[SOURCE] + 4 * s, np.int32(scramble(i, factor, offset, nodes)))
            store_i32(block[TARGET] + 4 * s, np.int32(scramble(j, factor, offset, nodes)))


def edges(
    owner: torch.Tensor, stubs: torch.Tensor, block_size: int, block_class: torch.Tensor, class_blocks: torch.Tensor,
    nodes: int, factor: int, offset: int, local: float, same_class: float, key: int,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """(source, target), int32: one edge per stub. owner[s] is the node of stub s, stubs[i] the first stub of node i."""
    source, target = torch.empty_like(owner), torch.empty_like(owner)
    edges_task.launch(
        owner.numel(), chunk_size(owner.numel(), 1024, 1 << 16), key, owner, stubs, block_size, block_class, class_blocks,
        nodes, factor, offset, local, same_class, source, target,
    )  # fmt: skip
    return source, target


@Task
def features_task(block):
    """x[id of node i] = signal * centres[latent class of i] + noise of variance 1."""
    count, chunk, key, width = block[COUNT], block[CHUNK], block[KEY], block[WIDTH]
    centres, latent, factor, offset = block[CENTRES], block[LATENT], block[X_FACTOR], block[X_OFFSET]
    signal = np.float32(double_of_word(block[SIGNAL]))
    low16 = np.uint64(0xFFFF)
    unit = np.float32(np.sqrt(3.0) / 65536.0)  # a sum of four uniform 16-bit numbers has the variance 65536^2 / 3
    while True:
        begin = next_ticket(block) * chunk
        if begin >= count:
            break
        for i in range(begin, min(begin + chunk, count)):
            row_key = counter_word(key, i)
            row = block[X] + 4 * width * scramble(i, factor, offset, count)
            centre = centres + 4 * width * np.int64(load_i32(latent + 4 * i))
            for d in range(width):
                w = counter_word(row_key, d)
                total = (w & low16) + ((w >> np.uint64(16)) & low16) + ((w >> np.uint64(32)) & low16) + (w >> np.uint64(48))
                noise = unit * np.float32(np.int64(total) - 2 * 65535)
                store_f32(row + 4 * d, noise + signal * load_f32(centre + 4 * d))


def features(
    latent: torch.Tensor, centres: torch.Tensor, signal: float, factor: int, offset: int, out: torch.Tensor, key: int
) -> None:
    """Fill ``out``, float32 [N, D]; latent int32[N] in block order, centres float32 [C, D]."""
    count, width = out.shape
    features_task.launch(count, chunk_size(count, 64, 4096), key, width, signal, centres, latent, factor, offset, out)
