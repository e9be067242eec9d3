"""From whole tensors to the part that a rank holds, and back: over tensor-parallel ranks, then over the stages of a pipeline."""

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from include.runtime.pieces import Owned, Pieces
from include.training.engines.optimizer_state import Named
from include.training.errors import TrainingError
from include.training.megatron.pieces import LlamaPieces, Piece
from include.training.megatron.place import Place

WRAPPED = "model."
"""What the scorer's parameters are called before their Hugging Face names."""


class Unwrapped(Mapping[str, Tensor]):
    """The trainer's tensors under the names without its wrapper; each is read when it is asked for."""

    def __init__(self, named: Named) -> None:
        self._named = named
        self._names = {name.removeprefix(WRAPPED): name for name in named}

    def __getitem__(self, name: str) -> Tensor:
        return self._named[self._names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Stage:
    """What this rank knows of its stage's parameters, and of where the others lie. Every rank calls `whole` together."""

    def __init__(self, pieces: LlamaPieces, place: Place, device: torch.device) -> None:
        self.all, self.place, self.device = pieces, place, device
        self.pieces: Sequence[Piece] = tuple(pieces.of_stage(place.pipeline.rank))

    def check(self, names: Collection[str]) -> None:
        """Refuses parameters of GPTModel that are not known here, or known ones that it lacks."""
        if odd := sorted(set(names) ^ {piece.name for piece in self.pieces}):
            raise TrainingError(f"engine megatron: nothing is known of the parameter {odd[0]}")

    @property
    def tied(self) -> str | None:
        """The parameter that the first and the last stage both hold and learn, on those two; else None."""
        if self.place.ends is None or self.all.output != "tied":
            return None
        return next(piece.name for piece in self.pieces if piece.how == "vocabulary")

    def part(self, piece: Piece, whole: Named, suffix: str = "") -> Tensor:
        """This rank's part of whole tensors, each named like a source and `suffix`."""
        return self.all.cut(piece, [whole[name + suffix] for name in piece.sources])[self.place.tensor.rank]

    def parts(self, whole: Named, suffix: str = "", *, together: bool = False) -> Iterator[tuple[str, Tensor]]:
        """This rank's part of each of its parameters, by Megatron's names, one after the other; `whole` by the trainer's names and `suffix`.

        together: every rank reads every weight, in the same order, as what is sent to all must be; it keeps its own part alone.
        """
        named = Unwrapped(whole)
        for stage in range(self.all.stages) if together else (self.place.pipeline.rank,):
            for piece in self.all.of_stage(stage):
                read = {name + suffix: named[name + suffix] for name in piece.sources}
                if stage == self.place.pipeline.rank:
                    yield piece.name, self.part(piece, read, suffix)
                del read  # before the next ones come

    def norm(self, gradients: Mapping[str, Tensor]) -> float:
        """Of the whole model's gradients: what is cut is summed over its ranks, what several ranks hold counts once."""
        kinds = {piece.name: piece for piece in self.pieces}
        squares = torch.zeros(2, dtype=torch.float64, device=self.device)
        for name, value in gradients.items():
            if not kinds[name].copy:
                squares[int(kinds[name].how == "whole")] += torch.linalg.vector_norm(value).double().square()
        if self.place.tensor.count > 1:
            dist.all_reduce(squares[:1], group=self.place.tensor.group)
        total = squares.sum()
        if self.place.pipeline.count > 1:
            dist.all_reduce(total, group=self.place.pipeline.group)
        return float(total.sqrt())

    def own(self, held: Named, suffix: str = "") -> Pieces:
        """This rank's pieces of tensors by Megatron's names, by the trainer's names and `suffix`. Nobody waits for anybody.

        The first of the data-parallel ranks has them, and of what is not cut the first tensor-parallel one.
        """
        found = Pieces()
        for piece in self.pieces if held and self.place.data.main else ():
            if not piece.copy and (piece.how != "whole" or self.place.tensor.main):
                for name, value, where in self.all.placed(piece, held[piece.name], self.place.tensor.rank):
                    found.add(f"{WRAPPED}{name}{suffix}", value, where)
        return found

    def whole(self, held: Named, shapes: Mapping[str, torch.Size]) -> Owned:
        """Tensors by Megatron's names, joined over ranks and stages, by the trainer's names; {} but on the first rank.

        `shapes`: of whole tensors, by the trainer's names.
        """
        return Owned(self.each_whole(held, shapes))

    def each_whole(self, held: Named, shapes: Mapping[str, torch.Size]) -> Iterator[tuple[str, Tensor]]:
        """The same one after the other: copies on the CPU of the first rank, nothing on the others, who go through all of them too."""
        for piece in self.all if held else ():
            joined: Sequence[Tensor] = ()
            if piece.stage == self.place.pipeline.rank:
                joined = self.all.join(piece, self._parts(piece, held[piece.name]))
            if piece.stage and self.place.first_copy:
                joined = self._moved(piece, joined, shapes)
            if self.place.main:
                yield from ((WRAPPED + name, value.cpu()) for name, value in zip(piece.sources, joined, strict=True))

    def of_all(self, count: Tensor) -> dict[str, Tensor]:
        """One number under the name of every parameter; {} but on the first rank."""
        names = [name for piece in self.all for name in piece.sources] if self.place.main else []
        return {WRAPPED + name: count for name in names}

    def _parts(self, piece: Piece, own: Tensor) -> list[Tensor]:
        tensor = self.place.tensor
        if tensor.count == 1 or piece.how == "whole":
            return [own]
        parts = [torch.empty_like(own) for _ in range(tensor.count)]
        dist.all_gather(parts, own.contiguous(), group=tensor.group)
        return parts

    def _moved(self, piece: Piece, joined: Sequence[Tensor], shapes: Mapping[str, torch.Size]) -> list[Tensor]:
        """A later stage's tensors on the first one; [] on all later ones."""
        group = self.place.pipeline.group
        if self.place.pipeline.rank == piece.stage:
            for value in joined:
                dist.send(value, dist.get_global_rank(group, 0), group=group)
        if self.place.pipeline.rank:
            return []
        found = [torch.empty(shapes[WRAPPED + name], device=self.device) for name in piece.sources]
        for value in found:
            dist.recv(value, dist.get_global_rank(group, piece.stage), group=group)
        return found
