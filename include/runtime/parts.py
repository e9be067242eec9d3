"""What a run's parts gave, as the job of the whole takes it: every byte verified, every part the one that was asked for."""

from pathlib import Path

from include.domain.errors import SpecError
from include.domain.parts import TAKEN, parts_of
from include.domain.spec import InputPlace
from include.runtime.errors import InputError
from include.runtime.inputs import verify_input
from include.runtime.job import Job


def taken(job: Job, beside: str | None = None) -> dict[str, Path]:
    """Name → verified folder of each part, in the parts' order; none where this run is made in one.

    Args:
        beside: the folder of this other output of each part, that is taken with it.

    Raises:
        InputError: a part is missing, is another run's than this specification asks for, or is not byte for byte what was committed.
    """
    given = job.settings.section(TAKEN, {}).values
    if not given:
        return {}
    wanted = {part.name: part for part in parts_of(job.spec, job.placement.settings)}
    if set(given) != set(wanted):
        raise InputError(f"the parts placed are {', '.join(sorted(given)) or 'none'}; this run has {', '.join(wanted) or 'none'}")
    folders = {}
    for name, part in wanted.items():
        try:
            key, out = given[name]["key"], given[name] if beside is None else given[name]["beside"][beside]
            place = InputPlace(out["path"], out["artifact"], out["artifact"])
        except (KeyError, TypeError) as error:
            named = "key, path and artifact" + (f", and the same of {beside} beside it" if beside else "")
            raise SpecError(f"settings.{TAKEN}.{name} is to have {named}, it is {given[name]!r}") from error
        if key != part.spec.key:
            raise InputError(f"part {name}: {key} was placed, this specification asks for {part.spec.key}")
        if job.ranks.main:
            verify_input(f"part {name}" + (f", {beside}" if beside else ""), place)
        folders[name] = Path(place.path)
    return folders
