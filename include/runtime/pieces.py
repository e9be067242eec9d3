"""Tensors of a checkpoint by name: whole ones, or the pieces of whole ones that several ranks have written, each for itself.

A piece is a range of the whole tensor's elements in their order (what ZeRO deals out), or a box of its rows and columns (what tensor
parallelism cuts). Where it lies stands in the header of its safetensors file, so any layout finds its own part again.
"""

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from include.domain.manifest import file_entry
from include.runtime.errors import CheckpointError
from include.runtime.files import sync_file

SUFFIX = ".safetensors"
_OF_RANK = "@"
_HEADER = "pieces"


class Owned(dict[str, torch.Tensor]):
    """Tensors on the CPU that were made to be kept: nobody changes them, so they are written as they are, and never copied again."""


@dataclass(frozen=True)
class Place:
    """Where a piece lies. shape: of the whole tensor. start: of the piece along each axis; one number alone: in the order of elements."""

    shape: tuple[int, ...]
    start: tuple[int, ...]

    @property
    def flat(self) -> bool:
        """Whether the piece is a range of elements, and not a box."""
        return len(self.start) == 1

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of the whole tensor, along the axes that `start` counts on."""
        return (math.prod(self.shape),) if self.flat else self.shape

    @classmethod
    def all_of(cls, value: torch.Tensor) -> "Place":
        return cls(tuple(value.shape), (0,) * value.dim())


class Pieces(Owned):
    """This rank's pieces of whole tensors, copies on the CPU, and the place of each. No element is in two ranks' pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, Place] = {}

    def add(self, name: str, value: torch.Tensor, place: Place | None = None) -> None:
        """Takes a copy of `value`; without a place it is a whole tensor."""
        self[name] = value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        self.places[name] = place or Place.all_of(value)

    def take(self, others: "Pieces") -> None:
        """Takes others over; none of their names is here."""
        self.update(others)
        self.places |= others.places


def write_group(folder: Path, group: str, tensors: Mapping[str, torch.Tensor], rank: int) -> Path:
    """One file: of whole tensors ``<group>.safetensors``, of a rank's pieces ``<group>@<rank>.safetensors``."""
    if not isinstance(tensors, Pieces):
        path = folder / f"{group}{SUFFIX}"
        save_file({name: _plain(tensor) for name, tensor in tensors.items()}, path)
        return path
    path = folder / f"{group}{_OF_RANK}{rank}{SUFFIX}"
    places = {name: {"shape": place.shape, "start": place.start} for name, place in tensors.places.items()}
    save_file(dict(tensors), path, metadata={_HEADER: json.dumps(places)})
    return path


def write_groups(folder: Path, groups: Mapping[str, Mapping[str, torch.Tensor]], rank: int) -> list[dict[str, Any]]:
    """Writes a rank's tensors into a folder that may be there, durably; the manifest's entries of its files."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for group, tensors in groups.items():
        path = write_group(folder, group, tensors, rank)
        sync_file(path)
        entries.append(file_entry(folder, path.name).to_json())
    return entries


def groups_in(folder: Path, listed: Collection[str] | None = None) -> list[str]:
    """The groups that a checkpoint's folder has, of the `listed` files or of all that are there."""
    return sorted({_group_of(name) for name in _tensor_files(folder, listed)})


def _tensor_files(folder: Path, listed: Collection[str] | None) -> list[str]:
    names = [path.name for path in folder.iterdir()] if listed is None else listed
    return sorted(name for name in names if name.endswith(SUFFIX))


def _group_of(name: str) -> str:
    return name.removesuffix(SUFFIX).partition(_OF_RANK)[0]


@dataclass(frozen=True)
class _Part:
    """What one file has of a tensor."""

    path: Path
    file: Any
    place: Place
    size: tuple[int, ...]
    kind: str

    def read(self, name: str) -> torch.Tensor:
        found: torch.Tensor = self.file.get_tensor(name)
        return found


class Stored(Mapping[str, torch.Tensor]):
    """The tensors of one group, whole, on the CPU; each is read when it is asked for, and put together from its pieces.

    Args:
        listed: the files that may be read, as a manifest names them; None: all that are there.

    Raises:
        CheckpointError: there is no such group, a file is not what it should be, or the pieces of a tensor do not make a whole one.
    """

    def __init__(self, folder: Path, group: str, listed: Collection[str] | None = None) -> None:
        self._found: dict[str, list[_Part]] = {}
        names = [name for name in _tensor_files(folder, listed) if _group_of(name) == group]
        if not names:
            raise CheckpointError(f"{folder} has no group {group!r}; it has {', '.join(groups_in(folder, listed))}")
        whole = f"{group}{SUFFIX}"
        for file_name in [whole] if whole in names else names:
            self._index(folder / file_name)
        for name, parts in self._found.items():
            _check(name, parts)

    def __contains__(self, name: object) -> bool:
        return name in self._found

    def __getitem__(self, name: str) -> torch.Tensor:
        parts = self._found[name]
        first = parts[0].read(name)
        if len(parts) == 1:
            return first.reshape(parts[0].place.shape)
        whole = torch.empty(parts[0].place.shape, dtype=first.dtype)
        for part in parts:
            _at(whole, part.place, part.size).copy_(part.read(name))
        return whole

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def range(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Elements from `start` to before `stop` of a tensor, in their order; of pieces that lie so no others are read."""
        parts = self._found[name]
        if not parts[0].place.flat:
            return self[name].reshape(-1)[start:stop]
        inside = []
        for part in sorted(parts, key=lambda part: part.place.start):
            at = part.place.start[0]
            first, last = max(start, at), min(stop, at + part.size[0])
            if first < last:
                inside.append(part.read(name)[first - at : last - at])
        return torch.cat(inside) if inside else parts[0].read(name)[:0]

    def _index(self, path: Path) -> None:
        try:
            file = safe_open(path, framework="pt")
            said = json.loads((file.metadata() or {}).get(_HEADER, "null"))
        except (SafetensorError, OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        for name in file.keys():  # noqa: SIM118 - not a mapping
            lies = file.get_slice(name)
            size = tuple(lies.get_shape())
            place = _said_place(path, said, name) if _OF_RANK in path.name else Place(size, (0,) * len(size))
            self._found.setdefault(name, []).append(_Part(path, file, place, size, lies.get_dtype()))


def _said_place(path: Path, said: Any, name: str) -> Place:
    """Where a piece lies, as the header of its file says."""
    try:
        place = Place(tuple(said[name]["shape"]), tuple(said[name]["start"]))
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{path} does not say where its piece of {name} lies") from error
    if any(type(number) is not int for number in (*place.shape, *place.start)) or any(length < 1 for length in place.shape):
        raise CheckpointError(f"{path}: its piece of {name} cannot begin at {place.start} of {place.shape}")
    return place


def _check(name: str, parts: Sequence[_Part]) -> None:
    """That pieces lie side by side along one axis, from one end of the whole to the other."""
    first = parts[0]
    shape, whole = first.place.shape, first.place.lengths
    there = sum(math.prod(part.size) for part in parts)
    if there != math.prod(shape):
        raise CheckpointError(f"{first.path.parent}: the pieces of {name} hold {there} elements, the whole has {shape}")
    axis = next((axis for axis, (own, length) in enumerate(zip(first.size, whole, strict=False)) if own != length), 0)
    at = [0] * len(whole)
    for part in sorted(parts, key=lambda part: part.place.start[axis : axis + 1]):
        size = [*whole[:axis], *part.size[axis : axis + 1], *whole[axis + 1 :]]
        if (part.place.shape, part.kind) != (shape, first.kind) or list(part.size) != size or list(part.place.start) != at:
            raise CheckpointError(
                f"{part.path}: its piece of {name}, {part.kind} {part.size} from {part.place.start} of {part.place.shape}, does not go with the others"
            )
        if at:
            at[axis] += part.size[axis]


def _at(whole: torch.Tensor, place: Place, size: Sequence[int]) -> torch.Tensor:
    """Where a piece of some size goes."""
    if place.flat:
        return whole.view(-1).narrow(0, place.start[0], size[0])
    for axis, (start, length) in enumerate(zip(place.start, size, strict=True)):
        whole = whole.narrow(axis, start, length)
    return whole


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """On the CPU, contiguous, with storage of its own, as safetensors asks for."""
    plain = tensor.detach().to("cpu").contiguous()
    return plain.clone() if plain.untyped_storage().nbytes() != plain.nbytes else plain
