"""One thread for tests with tiny tensors, on which several threads would only wait for each other."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def on_one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(before)
