"""The weights and tables that a run ended with, for studies that measure something afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..config import Config
from ..data.clusters import load_data
from ..nn import model_named
from ..training.checkpoint import epochs, read, read_tables, tables_path
from ..training.trainer import Trainer
from ..utils.errors import UserError
from ..utils.machine import device_of


@contextmanager
def last_state(config: Config, folder: Path) -> Iterator[Trainer]:
    """A trainer with the state of the last checkpoint, for the block."""
    config = config.changed(device=device_of(config.device))
    loaded = load_data(config, model_named(config.model).normalise)
    trainer = Trainer(config, loaded, folder=folder / "history")
    try:
        checkpoint = epochs(folder / "checkpoints")[-1]
        trainer.load(read(checkpoint, config, loaded.fingerprint)[0]["trainer"])
        if trainer.history.all_tables and not read_tables(checkpoint, trainer.history, trainer.step):
            raise UserError(f"{checkpoint} has no tables; remove {folder} to start the run again")
        yield trainer
    finally:
        trainer.close()


def remove_tables(folder: Path) -> None:
    """Remove the tables of a run's checkpoints, which are large."""
    for path in epochs(folder / "checkpoints"):
        tables_path(path).unlink(missing_ok=True)
