"""Names of what there are several of: the members of an ensemble are `reward_model`, `reward_model_2`, `reward_model_3` …"""

from collections.abc import Iterable


def members_among(names: Iterable[str], first: str) -> list[str]:
    """Those of `names` that are `first` or bear its name with a number, in the order of their numbers."""
    found = [name for name in names if name == first or (name.startswith(f"{first}_") and name.removeprefix(f"{first}_").isdecimal())]
    return sorted(found, key=lambda name: (len(name), name))
