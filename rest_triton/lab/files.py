"""Files that a study writes again and again."""

import os
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """All of it or what was there before, whenever the process ends. Not synced: results can be written again from the runs,
    and are after every one of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.partial-{os.getpid()}")
    scratch.write_bytes(content)
    os.replace(scratch, path)
