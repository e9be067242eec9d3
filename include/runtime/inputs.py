"""Inputs are verified byte for byte before they are used: one wrong byte is refused by name."""

from pathlib import Path

from include.domain.canonical import sha256_file
from include.domain.errors import IntegrityError, RecordError
from include.domain.manifest import MANIFEST, Manifest, verify_files
from include.domain.spec import InputPlace, Placement, RunSpec
from include.runtime.errors import InputError, RuntimeFault
from include.runtime.files import read_json

_BY_CONTENT = ("dataset", "prompt_set")


def verify_inputs(spec: RunSpec, placement: Placement, raw: frozenset[str] = frozenset()) -> dict[str, Path]:
    """Name → folder of every input the specification names, each one verified.

    Args:
        raw: inputs that are single files without a manifest; the program checks them with `verify_raw`.
    """
    folders = {}
    for name, wanted in sorted(spec.inputs.items()):
        place = placement.inputs.get(name)
        if place is None:
            raise InputError(f"placement.json says nothing about input {name}; it places {', '.join(sorted(placement.inputs))}")
        if place.digest != wanted:
            raise InputError(f"input {name}: the specification names {wanted}, placement.json gives {place.digest}")
        folders[name] = Path(place.path)
        if name not in raw:
            verify_input(name, place)
    return folders


def input_folders(spec: RunSpec, placement: Placement) -> dict[str, Path]:
    """The same folders, for a rank whose first rank has verified them."""
    return {name: Path(placement.inputs[name].path) for name in spec.inputs}


def verify_input(name: str, place: InputPlace) -> Manifest:
    """Compares a folder with its manifest, and the manifest with the digest that was asked for."""
    folder = Path(place.path)
    try:
        manifest = Manifest.from_json(read_json(folder / MANIFEST))
        if manifest.digest != place.artifact:
            raise InputError(f"{folder / MANIFEST} is of {manifest.digest}, asked for is {place.artifact}")
        verify_files(manifest, folder)
        _check_identity(manifest, folder, place)
    except (IntegrityError, RecordError, RuntimeFault) as error:
        raise InputError(f"input {name}: {error}") from error
    return manifest


def _check_identity(manifest: Manifest, folder: Path, place: InputPlace) -> None:
    if manifest.kind in _BY_CONTENT:
        stated = read_json(folder / "dataset.json").get("content_hash")
        if stated != place.digest:
            raise InputError(f"{folder / 'dataset.json'} says content_hash {stated}, asked for is {place.digest}")
    elif place.digest != place.artifact:
        raise InputError(f"{folder}: its identity {place.digest} and its artifact digest {place.artifact} differ")


def verify_raw(name: str, folder: Path, file: str, sha256: str) -> Path:
    """The file `file` in `folder` whose bytes have the digest `sha256`."""
    path = folder / file
    if Path(file).name != file or not path.is_file():
        raise InputError(f"input {name}: {path} is not a file")
    if (seen := sha256_file(path)) != sha256:
        raise InputError(f"input {name}: {path} is corrupt: its bytes give {seen}, asked for is {sha256}")
    return path
