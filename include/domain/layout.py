"""Where things lie in the store. One place names every path; paths are POSIX and relative to the store's root.

bases/<hex>/  datasets/<hex>/  code/<hex>.tar  env/<hex>/  runs/<key hex>/
runs/<key>/spec.json
runs/<key>/submissions/<n>/placement.json script.sh slurm-<job>.log
runs/<key>/attempts/<n>-<job id>.<restart>/...
arrays/<array key hex>/<n>/tasks.json bootstrap.py slurm-<array job>_<task>.log
caches/reference-log-probs/<hex>/...
shown/<candidates' hex>/<hex>/answers.jsonl
"""

import re
from dataclasses import dataclass

from include.domain.canonical import hex_of
from include.domain.errors import RecordError

REFERENCE_CACHES = "caches/reference-log-probs"
_ATTEMPT = re.compile(r"(\d+)-(\d+)\.(\d+)\Z")
_CHECKPOINT = re.compile(r"step-(\d+)\Z")


def base_dir(base_digest: str) -> str:
    return f"bases/{hex_of(base_digest)}"


def dataset_dir(content_hash: str) -> str:
    return f"datasets/{hex_of(content_hash)}"


def code_tar(code_digest: str) -> str:
    return f"code/{hex_of(code_digest)}.tar"


def environment_dir(lock_digest: str) -> str:
    return f"env/{hex_of(lock_digest)}"


def source_dir(sha256: str) -> str:
    """A raw input file brought to the cluster by digest, such as a GGUF: the folder that holds it."""
    return f"sources/{hex_of(sha256)}"


def array_dir(array_key: str, n: int) -> str:
    """What lies beside submission `n` of an array; its tasks have run folders of their own."""
    return f"arrays/{hex_of(array_key)}/{n}"


def shown_dir(candidates: str) -> str:
    """Answers of a candidate set as annotators see them, where that is another text than was written; a folder for each time it was another."""
    return f"shown/{hex_of(candidates)}"


def reference_cache_dir(address: str) -> str:
    """Reference log-probabilities that any run may read: nothing is lost with it but the time to compute them anew."""
    return f"{REFERENCE_CACHES}/{hex_of(address)}"


@dataclass(frozen=True)
class RunDir:
    """The folder of one stage key."""

    key: str

    @property
    def root(self) -> str:
        return f"runs/{hex_of(self.key)}"

    @property
    def spec(self) -> str:
        return f"{self.root}/spec.json"

    @property
    def attempts(self) -> str:
        return f"{self.root}/attempts"

    def submission(self, n: int) -> str:
        return f"{self.root}/submissions/{n}"

    def attempt(self, name: str) -> str:
        AttemptName.parse(name)
        return f"{self.attempts}/{name}"


@dataclass(frozen=True, order=True)
class AttemptName:
    """``<n>-<job id>.<restart>``: the submission, the Slurm job, its incarnation.

    Ordered by (n, job id, restart) for listings only; `newer_than` says which one supersedes another.
    """

    n: int
    job_id: int
    restart: int

    def __str__(self) -> str:
        return f"{self.n}-{self.job_id}.{self.restart}"

    @classmethod
    def parse(cls, name: str) -> "AttemptName":
        match = _ATTEMPT.match(name)
        if not match:
            raise RecordError(f"{name!r} is not an attempt's folder (<n>-<job id>.<restart>)")
        return cls(*(int(part) for part in match.groups()))

    def newer_than(self, other: "AttemptName") -> bool:
        """A greater n, or the same n and job with a greater restart; the same n under another job id is not newer."""
        return self.n > other.n or (self.n == other.n and self.job_id == other.job_id and self.restart > other.restart)


def checkpoint_name(step: int) -> str:
    return f"step-{step}"


def checkpoint_step(name: str) -> int | None:
    """The step of a checkpoint's folder, or None for anything else (``step-3.tmp``, ``step-3.bak``)."""
    match = _CHECKPOINT.match(name)
    return int(match.group(1)) if match else None
