"""What Slurm's error texts mean: who could not be reached, what will never be allowed, and what only has to wait."""

from __future__ import annotations

import re

from airflow_slurm.errors import (
    AccountingDisabled,
    AccountingUnreachable,
    AnswerLost,
    CommandRefused,
    ControllerUnreachable,
    SlurmError,
    SubmitBusy,
    SubmitRefused,
)

#: Limits on what is queued at once: the same request is taken when other jobs have left, or the controller's disk has room again. Names as in
#: the manual page slurm.conf/resource_limits; the same last line ("violates accounting/QOS policy") also ends requests that are too big.
_BUSY = re.compile(
    r"\b\w*(?:MaxSubmitJob\w*|GrpSubmitJob\w*|MaxSubmit\b\w*|GrpSubmit\b\w*|MaxJobCount)\b"
    r"|Slurm temporarily unable to accept job|job queue is full|Resource temporarily unavailable|I/O error writing script",
    re.IGNORECASE,
)
#: The request reached nobody for certain, or nobody knows whether it did.
_UNHEARD = re.compile(
    r"Socket timed out|Unable to contact slurm controller|Connection (?:refused|reset|timed out)|Zero Bytes|"
    r"Transport endpoint|Communication connection failure|Protocol authentication|Munge|"
    r"Message send failure|Message receive failure|Slurm backup controller|in standby|Unexpected message received",
    re.IGNORECASE,
)

_ACCOUNTING_OFF = re.compile(r"accounting storage is disabled", re.IGNORECASE)
_ACCOUNTING_DOWN = re.compile(
    r"Problem talking to the database|Connection refused|persistent connection|slurmdbd|Unable to contact|" + _UNHEARD.pattern,
    re.IGNORECASE,
)
#: What scancel says of a job that needs no ending any more.
_OVER = re.compile(r"Invalid job id|already completing or completed|already finished", re.IGNORECASE)
#: So much of what Slurm says is kept, and of what scancel says, a line for each job: of all that one command names.
_MOST_WORDS, _MOST_OF_SCANCEL = 2000, 20_000
_NO_CONFIGURATION = re.compile(r"Could not establish a configuration source|Unable to process configuration file", re.IGNORECASE)


_ERROR = re.compile(r"(?:sbatch|squeue|sacct|sacctmgr|scancel|scontrol|sinfo|srun): (?:error|fatal): |slurm_\w+ error: ")


def says_error(stderr: str) -> bool:
    """Whether one of Slurm's commands says there that something went wrong; what a user's start-up files print is none of theirs."""
    return _ERROR.search(stderr) is not None


def words_of(stderr: str, most: int = _MOST_WORDS) -> str:
    """Slurm's own words, without the programs' names in front; other lines (banners) only if there are none."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    ours = [line for line in lines if re.match(r"(?:slurm_load_jobs |s[a-z]+: )?(?:error|fatal):|s[a-z]+: ", line)]
    cleaned = [re.sub(r"^(?:s[a-z]+: )?(?:error: |fatal: )?", "", line) for line in ours or lines]
    return "; ".join(dict.fromkeys(cleaned))[:most]


def all_over(words: str, *, wordless: bool = False) -> bool:
    """Whether all that scancel complained of, in :func:`words_of` it, is that jobs have ended, or are not there. Words that were cut may hide more.

    :param wordless: its exit code says that of some job: only what is said of another one counts, and no banner.
    """
    rest = [line for line in words.split("; ") if not _OVER.search(line)]
    return len(words) < _MOST_OF_SCANCEL and not [line for line in rest if not wordless or "job id" in line]


def refused_ids(words: str) -> set[str]:
    """The jobs of which scancel said that they may not be ended; none if it did not say which, or its words were cut."""
    refused = [re.search(r"\bjob id ([0-9]+(?:[_+][0-9]+)?)\b", line) for line in words.split("; ") if not _OVER.search(line)]
    ids = {found.group(1) for found in refused if found}
    return ids if all(refused) and len(words) < _MOST_OF_SCANCEL else set()


def submission_failure(stderr: str, code: int) -> SlurmError:
    """The error that a failed sbatch stands for.

    A text that isn't known is *lost*, not *refused*, when sbatch may have reached the controller: looking the name up
    costs one question, sending twice costs a cluster.
    """
    words = words_of(stderr)
    if _NO_CONFIGURATION.search(words) or code in (126, 127):
        return SubmitRefused(words or "the sbatch command was not found; set slurm_bin in the connection")
    if _UNHEARD.search(words):
        return AnswerLost(f"Nobody knows whether the job was queued. Slurm said: {words}")
    if _BUSY.search(words):
        return SubmitBusy(words)
    if "Batch job submission failed" in words or "sbatch: " in stderr:
        return SubmitRefused(words)
    return AnswerLost(f"sbatch ended with {code} and said nothing known: {words or 'nothing'}")


def query_failure(command: str, stderr: str, code: int) -> SlurmError:
    """The error that a failed squeue, sacct, scontrol, scancel or sinfo stands for."""
    words = words_of(stderr, _MOST_OF_SCANCEL if command == "scancel" else _MOST_WORDS)
    if command == "sacct":
        if _ACCOUNTING_OFF.search(words):
            return AccountingDisabled(f"Accounting is switched off at this site. Slurm said: {words}")
        if _ACCOUNTING_DOWN.search(words):
            return AccountingUnreachable(f"The accounting database did not answer. Slurm said: {words}")
    elif _UNHEARD.search(words):
        return ControllerUnreachable(f"{command}: the controller did not answer. Slurm said: {words}")
    return CommandRefused(command, words, code)
