"""One pure builder of an argument vector for every Slurm verb, and the clean environment they run in.

Nothing here runs anything. Columns are always named, and the delimiter is ours, so that a user's SQUEUE_FORMAT or
SACCT_FORMAT changes nothing; times are asked for as seconds since the epoch (``SLURM_TIME_FORMAT=%s``, understood by
22.05 and 24.11), so that no time zone and no repeated hour in autumn is ever read from text.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_slurm.errors import InvalidSpec
from airflow_slurm.spec import check_job_name

DELIMITER = "|"
#: Stands in an argument for the mark of the call (see :func:`remote_line`), and in the answer for what came of it. A job's name may hold
#: anything, line feeds too (22.05 takes them): what ends a row has to be something that nobody who names a job can know.
ROW_END = "\x1e"
QUEUE_COLUMNS = (
    "JobID",
    "JobArrayID",
    "State",
    "RestartCnt",
    "exit_code",
    "SubmitTime",
    "StartTime",
    "EndTime",
    "NumNodes",
    "NodeList",
    "Reason",
    "Name",
)
#: What tells the hold that a job was submitted with from a later one; asked for only while somebody needs it.
HOLD_COLUMNS = ("EligibleTime", "Dependency")
ACCOUNTING_COLUMNS = (
    "JobIDRaw",
    "JobID",
    "State",
    "ExitCode",
    "Submit",
    "Start",
    "End",
    "ElapsedRaw",
    "NNodes",
    "NodeList",
    "JobName",
    "AllocTRES",
)
#: What a Slurm client may need from the login environment. Everything else, all SLURM_*, SBATCH_*, SQUEUE_*, SACCT_*
#: and PMIX_* of an allocation and all secrets of a worker included, stays out.
KEPT_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "KRB5CCNAME", "LD_LIBRARY_PATH")
#: sacct 22.05 refuses ``uts0`` and ``uts86400`` as no time. This is September 2001, before there was a Slurm.
EARLIEST = 1_000_000_000
#: Exit code of a remote line whose input did not arrive whole; its command was not run.
CUT_SHORT = 74
_JOB_ID = re.compile(r"[0-9]+(?:_[0-9]+|\+[0-9]+)?")


@dataclass(frozen=True)
class ClientSite:
    """Where the Slurm commands of one cluster are found and how they are told which cluster is meant.

    :ivar slurm_bin: folder of the commands there, if they are not on the login PATH.
    :ivar slurm_conf: path of slurm.conf there, if it is not the built-in one.
    :ivar cluster: name for ``--clusters``, where one login node serves several.
    """

    slurm_bin: str | None = None
    slurm_conf: str | None = None
    cluster: str | None = None


#: A login node with everything at its usual place.
ANY_SITE = ClientSite()


def sbatch_held(job_name: str, cluster: str | None = None) -> list[str]:
    """Queue the script on standard input, held: it can't start before its receipt is stored."""
    return ["sbatch", "--parsable", "--hold", f"--job-name={check_job_name(job_name)}", *clusters_option(cluster)]


def squeue(
    cluster: str | None = None,
    name: str | Sequence[str] | None = None,
    *,
    ids: Sequence[str] = (),
    all_users: bool = False,
    holds: bool = False,
) -> list[str]:
    """All jobs of this user that the controller still knows, ended ones included; or those of one name or several, or of some ids.

    :param all_users: other users' too, where the site shows them; with a name or ids only.
    :param holds: with :data:`HOLD_COLUMNS`.
    """
    if all_users and not ids and not name:
        raise ValueError("squeue for all users needs job ids or a name: without either it lists the whole site's queue")
    delimited = QUEUE_COLUMNS[:-1] + (HOLD_COLUMNS if holds else ())
    columns = ",".join(f"{column}:{DELIMITER}" for column in delimited) + f",{QUEUE_COLUMNS[-1]}:{DELIMITER}{ROW_END}"
    chosen = [] if all_users else ["--me"]
    chosen += [_names_option(name)] if name else []
    chosen += [f"--jobs={','.join(check_job_id(i) for i in ids)}"] if ids else []
    return ["squeue", "--noheader", "--states=all", *chosen, f"--Format={columns}", *clusters_option(cluster)]


def sacct(
    since: float,
    *,
    ids: Sequence[str] = (),
    name: str | Sequence[str] | None = None,
    cluster: str | None = None,
    all_users: bool = False,
    steps: bool = False,
) -> list[str]:
    """Every incarnation (``--duplicates``) of some jobs from a time on; without one, sacct looks at today only.

    :param steps: also the steps of each, which outlast a start time that a controller took back.
    :param since: seconds since the epoch, from our own record. ``uts`` is sacct's spelling of it.
    """
    if not ids and not name:
        raise ValueError("sacct needs job ids or a name: without either it lists everybody's day")
    chosen = [f"--jobs={','.join(check_job_id(i) for i in ids)}"] if ids else [_names_option(name or "")]
    return [
        "sacct",
        *([] if steps else ["--allocations"]),
        "--parsable",
        f"--delimiter={DELIMITER}{ROW_END}",
        "--noheader",
        "--duplicates",
        *(["--allusers"] if all_users else []),
        f"--starttime=uts{max(EARLIEST, int(since))}",
        f"--format={','.join(ACCOUNTING_COLUMNS)}",
        *chosen,
        *clusters_option(cluster),
    ]


def scontrol_release(job_id: str, cluster: str | None = None) -> list[str]:
    """Let a held job go."""
    return ["scontrol", *clusters_option(cluster), "release", check_job_id(job_id)]


def scontrol_show_config(cluster: str | None = None) -> list[str]:
    """The controller's configuration, and when it was started."""
    return ["scontrol", *clusters_option(cluster), "show", "config"]


def scontrol_show_nodes(nodes: str, cluster: str | None = None) -> list[str]:
    """What the controller says of some nodes, a line each.

    :param nodes: as Slurm prints them, such as ``n[1-3],gpu7``. :raises InvalidSpec: for what is no such list.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.,\[\]-]*", nodes):
        raise InvalidSpec("nodes", f"{nodes!r} is not a list of nodes")
    return ["scontrol", *clusters_option(cluster), "--oneliner", "show", "node", nodes]


def scancel(
    job_ids: str | Sequence[str], *, signal: str | None = None, cluster: str | None = None, waiting_only: bool = False
) -> list[str]:
    """End a job, or several; with a signal, send that to the batch shell instead (``--batch``), which is the program itself after ``exec``.
    ``KILL`` goes to all of the job: its shell alone would leave what it started behind.

    ``5501`` means every task of an array, ``5501_4`` one.

    :param waiting_only: only what has not started, such as some tasks of an array.
    """
    if signal is not None and not re.fullmatch(r"[A-Z]+[0-9]?|[0-9]{1,2}", signal):
        raise InvalidSpec("signal", f"{signal!r} is not a signal's name or number")
    ids: list[str] = list(job_ids) if isinstance(job_ids, (list, tuple)) else [str(job_ids)]
    if not ids:
        raise InvalidSpec("job_id", "scancel needs a job id")
    sent = ["--batch"] if signal not in (None, "KILL") else []
    sent += [f"--signal={signal}"] if signal else []
    sent += ["--state=PENDING"] if waiting_only else []
    return ["scancel", *sent, *clusters_option(cluster), *map(check_job_id, ids)]


def version() -> list[str]:
    """The client's version; asks no daemon."""
    return ["sinfo", "--version"]


def check_job_id(job_id: str) -> str:
    """The id as it is, if it is one.

    :raises InvalidSpec: otherwise: no empty argument, ``None`` or option ever reaches scancel.
    """
    if not isinstance(job_id, str) or not _JOB_ID.fullmatch(job_id):
        raise InvalidSpec("job_id", f"{job_id!r} is not a Slurm job id")
    return job_id


def remote_line(argv: Sequence[str], site: ClientSite, mark: str, input_bytes: int | None = None, then: Sequence[str] | None = None) -> str:
    """One command line for the far side: clean environment, and standard output between two marks.

    It runs below ``/bin/sh`` whatever the login shell is. Variables are unset there by name, so that a token among those
    that are kept (``SLURM_JWT``) never stands in an argument list. What a start-up file or a banner prints comes before the first
    mark; an answer without the last mark is not whole. The last mark carries the exit code. With a second command, the far side's clock stands
    behind the first one, in a line ``{mark}C:{seconds}``.

    :param mark: letters and digits that no output holds by chance. It also takes the place of every :data:`ROW_END`, of the second command as ``{mark}T``.
    :param input_bytes: how much standard input the command has to get. If the connection breaks within it, the command
        would else see an early end and take it for all: sbatch would queue the first half of a script.
    :param then: a second command that runs if the first one succeeded, between the marks ``{mark}T``.
    """
    if not mark.isalnum():
        raise ValueError("the mark is made of letters and digits only")
    argv, then = _with_mark(argv, mark), None if then is None else _with_mark(then, mark + "T")
    kept = "|".join(KEPT_VARIABLES)
    names = "$(env | sed -n 's/^\\([A-Za-z_][A-Za-z0-9_]*\\)=.*/\\1/p')"
    steps = [f'for v in {names}; do case "$v" in {kept}) ;; *) unset "$v" ;; esac; done']
    if site.slurm_bin:
        steps.append(f'PATH={shlex.quote(site.slurm_bin)}:"$PATH"; export PATH')
    if site.slurm_conf:
        steps.append(f"SLURM_CONF={shlex.quote(site.slurm_conf)}; export SLURM_CONF")
    # SLURM_BITSTR_LEN: by default the list of an array's waiting tasks is cut after 64 characters.
    steps.append("LC_ALL=C.UTF-8 TZ=UTC SLURM_TIME_FORMAT=%s SLURM_BITSTR_LEN=0; export LC_ALL TZ SLURM_TIME_FORMAT SLURM_BITSTR_LEN")
    command = shlex.join(argv)
    if input_bytes is not None:
        # Bytes, not characters, also in a shell that knows of the latter: hence the locale, for this one line.
        steps += ["input=$(cat; printf x)", f'LC_ALL=C; [ "${{#input}}" -eq {input_bytes + 1} ] || exit {CUT_SHORT}; LC_ALL=C.UTF-8']
        command = f'printf %s "${{input%x}}" | {command}'
    steps += _marked(command, mark)
    if then is not None:
        steps.append(f"printf '%s:%s\\n' {mark}C \"$(date +%s)\"")
        steps.append(f'[ "$code" -eq 0 ] || exit 0; {"; ".join(_marked(shlex.join(then), mark + "T"))}')
    script = "; ".join(steps)
    return "/bin/sh -c " + shlex.quote(script)


def _names_option(name: str | Sequence[str]) -> str:
    return f"--name={','.join(check_job_name(one) for one in ([name] if isinstance(name, str) else name))}"


def _with_mark(argv: Sequence[str], mark: str) -> list[str]:
    return [word.replace(ROW_END, mark) for word in argv]


def _marked(command: str, mark: str) -> list[str]:
    return [f"printf '\\n%s\\n' {mark}B", command, "code=$?", f"printf '\\n%s:%s\\n' {mark}E $code"]


def clusters_option(cluster: str | None) -> list[str]:
    """``--clusters``, where a cluster is named. :raises InvalidSpec: for what is no name."""
    if not cluster:
        return []
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", cluster):
        raise InvalidSpec("cluster", f"{cluster!r} is not the name of a cluster")
    return [f"--clusters={cluster}"]
