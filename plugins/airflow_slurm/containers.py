"""A container image named by what it holds, and the command that runs a program in it with pyxis or Apptainer.

An image is pinned by its digest: a tag can be moved while a job waits. Images from a registry carry the digest in their
name; of a file (``.sif``, ``.sqsh``) the job compares the sha256 before it starts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from airflow_slurm.errors import InvalidSpec

_REFERENCE = re.compile(
    r"(?:(?P<scheme>docker|oras)://)?(?P<name>(?:[a-z0-9][a-z0-9.-]*(?::[0-9]+)?/)?[a-z0-9][a-z0-9._-]*(?:/[a-z0-9][a-z0-9._-]*)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?@sha256:(?P<digest>[0-9a-f]{64})"
)
_SHA256 = re.compile(r"[0-9a-f]{64}")
#: A path that neither the shell, pyxis' list of mounts nor Apptainer's reads as anything else.
_PATH = re.compile(r"/[^\x00-\x1f\x7f:,\\]*")
#: Exit code of a job whose image file is not the one that was asked for.
WRONG_IMAGE = 212


@dataclass(frozen=True)
class Container:
    """Where a job's command runs.

    The command runs once for each task of the job (``ntasks``), started by srun where there are several.

    :param runtime: ``pyxis`` (with enroot) or ``apptainer``.
    :param image: ``registry/name@sha256:<64 hex>``, with ``docker://`` or ``oras://`` in front or not; or the absolute path
        of an image file, with ``sha256``.
    :param sha256: of the image file, 64 hex digits.
    :param mounts: ``/host:/inside`` or ``/host:/inside:ro``.
    :param workdir: working directory inside.
    :param gpus: give the container the job's GPUs (Apptainer's ``--nv``; enroot does it by itself).

    :raises InvalidSpec: for an image that is not pinned, or a value that can't be passed on unchanged.
    """

    runtime: Literal["pyxis", "apptainer"]
    image: str
    sha256: str | None = None
    mounts: tuple[str, ...] = ()
    workdir: str | None = None
    gpus: bool = True

    def __post_init__(self) -> None:
        if self.runtime not in ("pyxis", "apptainer"):
            raise InvalidSpec("container.runtime", f"{self.runtime!r} is neither pyxis nor apptainer")
        mounts: Any = self.mounts
        if isinstance(mounts, str):
            raise InvalidSpec("container.mounts", "give a list of texts, not one text")
        object.__setattr__(self, "mounts", tuple(mounts))
        self._check_image()
        for mount in self.mounts:
            parts = mount.split(":") if isinstance(mount, str) else []
            if len(parts) not in (2, 3) or not all(_PATH.fullmatch(p) for p in parts[:2]) or parts[2:] not in ([], ["ro"], ["rw"]):
                raise InvalidSpec("container.mounts", f"{mount!r} is not /host:/inside, /host:/inside:ro or …:rw")
        if self.workdir is not None and not _PATH.fullmatch(self.workdir):
            raise InvalidSpec("container.workdir", f"{self.workdir!r} is not an absolute path without colon, comma or backslash")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Container:
        """Build one from a mapping. :raises InvalidSpec: for a name that is no field, listing those that are."""
        known = [f.name for f in fields(cls)]
        for name in values:
            if name not in known:
                raise InvalidSpec(f"container.{name}", f"no such field; there are {', '.join(known)}")
        for name in ("runtime", "image"):
            if name not in values:
                raise InvalidSpec(f"container.{name}", "is missing")
        return cls(**values)

    @property
    def is_file(self) -> bool:
        """Whether the image is a file on the cluster."""
        return self.image.startswith("/")

    def check_lines(self) -> list[str]:
        """Shell lines that end the job with :data:`WRONG_IMAGE` if the image file is not the one that was pinned."""
        if not self.is_file:
            return []
        line = shlex.quote(f"{self.sha256}  {self.image}")
        said = shlex.quote(f"airflow_slurm: {self.image} is not there or not the image with sha256 {self.sha256}")
        return [f"printf '%s\\n' {line} | sha256sum --check --status || {{ printf '%s\\n' {said} >&2; exit {WRONG_IMAGE}; }}"]

    def command(self, program: tuple[str, ...], several_tasks: bool, cpus_per_task: int | None = None) -> tuple[str, ...]:
        """The argument vector that runs ``program`` in the container, once for each task.

        :param cpus_per_task: since 22.05 srun does not take that from the job.
        """
        srun = ("srun", *((f"--cpus-per-task={cpus_per_task}",) if cpus_per_task else ()))
        # One task that fails ends the others, which would wait for it; one that is done early does not.
        srun += ("--kill-on-bad-exit=1", "--wait=0") if several_tasks else ()
        if self.runtime == "pyxis":
            options = [f"--container-image={self._for_enroot()}"]
            options += [f"--container-mounts={','.join(self.mounts)}"] if self.mounts else []
            options += [f"--container-workdir={self.workdir}"] if self.workdir else []
            return (*srun, *options, *program)
        options = ["--nv"] if self.gpus else []
        options += [word for mount in self.mounts for word in ("--bind", mount)]
        options += ["--pwd", self.workdir] if self.workdir else []
        # --no-eval: Apptainer would else hand the words of the command to a shell inside.
        inside = ("apptainer", "exec", "--no-eval", *options, self._for_apptainer(), *program)
        return (*srun, *inside) if several_tasks else inside

    def _check_image(self) -> None:
        if not isinstance(self.image, str) or not self.image:
            raise InvalidSpec("container.image", "is missing")
        if self.is_file:
            if not _PATH.fullmatch(self.image) or ".." in self.image.split("/"):
                raise InvalidSpec("container.image", f"{self.image!r} is not a plain absolute path")
            if not isinstance(self.sha256, str) or not _SHA256.fullmatch(self.sha256):
                raise InvalidSpec("container.sha256", f"give the sha256 of {self.image} (64 hex digits), as sha256sum prints it")
            return
        found = _REFERENCE.fullmatch(self.image)
        if not found:
            raise InvalidSpec(
                "container.image",
                f"{self.image!r} is not pinned by its digest: a tag can be moved. Give registry/name@sha256:<64 hex digits>, "
                "or the path of an image file with its sha256",
            )
        if self.sha256 is not None and self.sha256 != found["digest"]:
            raise InvalidSpec("container.sha256", "differs from the digest in the image's name")
        if found["scheme"] == "oras" and self.runtime == "pyxis":
            raise InvalidSpec("container.image", "enroot takes no oras:// images")

    def _for_apptainer(self) -> str:
        """Without the tag: containers/image takes a tag or a digest, not both."""
        if self.is_file:
            return self.image
        scheme, name, digest = self._parts()
        return f"{scheme}://{name}@sha256:{digest}"

    def _for_enroot(self) -> str:
        """``registry#name:sha256:…``: enroot reads an ``@`` as the end of a user's name, and a digest where the tag stands."""
        if self.is_file:
            return self.image
        _, name, digest = self._parts()
        host, slash, rest = name.partition("/")
        if slash and ("." in host or ":" in host or host == "localhost"):
            name = f"{host}#{rest}"
        return f"{name}:sha256:{digest}"

    def _parts(self) -> tuple[str, str, str]:
        found = _REFERENCE.fullmatch(self.image)
        assert found  # checked when it was made
        return found["scheme"] or "docker", found["name"], found["digest"]
