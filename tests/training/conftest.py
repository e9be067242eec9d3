"""One tiny base, with data, made once for all tests of the programs. Small tensors: one thread is the fastest."""

from pathlib import Path

import pytest
import torch

from tests.training.harness import Store, demonstrations, prompts, tiny_base

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store that holds `base`, `demonstrations` and `prompts`."""
    made = Store(tmp_path_factory.mktemp("store"))
    tiny_base(made)
    demonstrations(made)
    prompts(made)
    return made


@pytest.fixture(scope="session")
def paired(store: Store) -> Store:
    """The same store, with the base as `policy` and preference pairs about it."""
    from tests.training import align_store

    store.artifact("policy", Path(store.places["base"].path))
    align_store.preferences(store, "preferences", 40, scored=align_store.planted_scores)
    return store
