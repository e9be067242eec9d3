"""What was trained on and what is measured are apart: checked on the stored bytes, before anything is measured."""

from collections.abc import Mapping
from typing import Any

from include.flows.preference_tasks import local_dataset
from include.settings.catalogue import recipe

Json = Mapping[str, Any]


def require_suites_apart(run: Json, suites: Mapping[str, Json], datasets: Mapping[str, Json]) -> int:
    """Number of suite items that no training row of `datasets` says again, word for word or nearly.

    The build keeps them apart; a run may still meet an older or newer version of one of them, so it is looked at again here.

    Raises:
        DataError: naming the first rows that overlap.
    """
    from include.data.suites import require_apart
    from include.transforms.near import NearSettings

    measured = {ref["content_hash"]: ref for ref in suites.values()}
    folders = {name: local_dataset(ref) for name, ref in datasets.items() if ref["content_hash"] not in measured}
    training = [folder for folder in folders.values() if _rows(folder) != "suite"]
    near = NearSettings(threshold=recipe(run["recipe"]).data.near_duplicate_threshold)
    items = require_apart([local_dataset(ref) for ref in measured.values()], training, near)
    print(f"{items} items of {len(measured)} suites are apart from the training rows of {len(training)} data sets")
    return items


def _rows(folder: Any) -> str:
    from include.transforms.datasets_io import read_info

    return str(read_info(folder)["rows"])
