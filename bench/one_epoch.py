"""One setting in a process of its own: ``python -m bench.one_epoch '{"dataset": …}' [--keep-freed-memory]``.

Loads, fills the tables, trains three epochs and evaluates, as the command line would, and prints as JSON what the last two
epochs and the evaluation took, the edges, and the most memory that the process held beyond what torch and the kernels take.
"""

import json
import sys
import time
from typing import Any

from rest_triton.config import Config
from rest_triton.data.clusters import load_data
from rest_triton.training.trainer import Trainer
from rest_triton.utils.machine import most_memory
from rest_triton.utils.malloc import keep_freed_memory


def measure(config: Config) -> dict[str, Any]:
    trainer = Trainer(config, load_data(config))
    trainer.begin()
    trainer.epoch(1)
    rounds = []
    for number in (2, 3):
        begin = time.perf_counter()
        trainer.epoch(number)
        rounds.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    trainer.evaluate()
    return dict(rounds=rounds, evaluation=time.perf_counter() - begin, edges=trainer.loaded.adj.num_edges)


def main(arguments: list[str]) -> None:
    if "--keep-freed-memory" in arguments:
        keep_freed_memory()
    config = Config(**json.loads(arguments[0]))
    measure(
        config.changed(dataset="synthetic:nodes=400,edges=2000", hidden_channels=8)
    )  # all that is loaded when it is needed
    empty = most_memory()
    found = measure(config)
    print(json.dumps(found | dict(memory=max(1, most_memory() - empty))))


if __name__ == "__main__":
    main(sys.argv[1:])
