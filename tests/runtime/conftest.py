"""Small tensors: one thread is the fastest, and keeps the machine free for others. A run to try bodies on."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runtime.bench import Bench

torch.set_num_threads(1)


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}
    yield Bench(tmp_path)
    for number, handler in handlers.items():
        signal.signal(number, handler)
