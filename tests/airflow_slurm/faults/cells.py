"""The matrix as data: which accident happens where.

Points are gates (see :mod:`.gates`) in the order in which a run comes by them, and three that have none: ``start`` (the
connection's first bytes), ``input`` (in the middle of the script that sbatch reads) and ``sftp`` (in the middle of the
job's output, as it is copied into the task's log).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

#: The job does its work, fails, saves when it is told to, or has to be killed.
WORKS, FAILS, SAVES, STUBBORN = "works", "fails", "saves", "stubborn"
#: It is an array of three; it is pushed out, and Slurm puts it back; it is pushed out, and ends; the task had asked for another one before.
ARRAY, PUT_BACK, PUSHED_OUT, CHANGED = "array", "put back", "pushed out", "another key before"

SUBMIT = (
    "claim:after", "sbatch:before", "sbatch:after", "record:before", "record:after", "look:before", "look:after",
    "release:before", "release:after", "released:before", "released:after",
)  # fmt: skip
WAIT = ("poll:before", "poll:after", "acct:before", "acct:after", "close:before")
CANCEL = ("cancel:before", "cancel:after")


@dataclass(frozen=True)
class Cell:
    """One accident at one point.

    :ivar nth: at which passage of the point. :ivar job: what the job does. :ivar cancels: whether a person fails the task.
    :ivar deferrable: whether the task waits in a triggerer, and not in its worker. :ivar on_kill: whether a triggerer acts on a person's
        word, and not the reconciler alone.
    :ivar timeout_s: how long a command may take before its answer counts as lost.
    :ivar short: whether it belongs to the selection that runs with all tests.
    """

    fault: str
    point: str
    nth: int = 1
    job: str = WORKS
    cancels: bool = False
    deferrable: bool = True
    on_kill: bool = True
    timeout_s: float = 6.0
    short: bool = False

    def __str__(self) -> str:
        nth = f"#{self.nth}" if self.nth > 1 else ""
        job = f" ({self.job})" if self.job != WORKS else ""
        return f"{self.fault} @ {self.point}{nth}{job}" + ("" if self.deferrable else ", in the worker")


def _cells() -> list[Cell]:
    cells = [Cell(fault, "start") for fault in ("cut", "swallow", "slow", "sshd killed")]
    cells += [Cell(fault, "input") for fault in ("cut", "swallow", "slow")]
    over_ssh = ("sbatch:before", "sbatch:after", "look:after", "release:before", "release:after")
    cells += [Cell(fault, point) for fault in ("cut", "swallow", "torn", "slow") for point in over_ssh]
    cells += [Cell("sbatch late", "sbatch:before"), Cell("torn", "look:before"), Cell("sbatch later", "sbatch:before")]
    cells += [Cell("sbatch after a run, worker killed", "sbatch:before")]
    cells += [Cell(fault, point, 2) for fault in ("cut", "swallow", "torn", "slow") for point in ("poll:before", "poll:after")]
    cells += [Cell(fault, "acct:after") for fault in ("cut", "swallow", "torn")]
    cells += [Cell("cut", "acct:after", job=FAILS), Cell("swallow", "acct:before", job=FAILS)]
    cells += [Cell(fault, "sftp") for fault in ("cut", "swallow", "slow")]
    cells += [Cell("worker killed", point) for point in SUBMIT] + [Cell("worker killed", "close:before")]
    cells += [Cell("triggerer killed", point, 2) for point in ("poll:before", "poll:after")]
    cells += [Cell("triggerer killed", point) for point in ("acct:before", "acct:after")]
    controller = (
        "sbatch:before",
        "sbatch:after",
        "look:before",
        "look:after",
        "release:before",
        "release:after",
        "acct:before",
        "acct:after",
    )
    cells += [Cell("slurmctld killed", point) for point in controller]
    cells += [Cell("slurmctld killed", "poll:before", 3), Cell("slurmctld killed", "poll:after", job=FAILS)]
    cells += [Cell("slurmctld restarted", point) for point in ("sbatch:before", "release:before")]
    cells += [Cell("slurmctld away", "sbatch:before", timeout_s=20.0), Cell("slurmctld away", "poll:before", 2, timeout_s=20.0)]
    cells += [Cell("slurmctld killed", "poll:before", 2, job=FAILS), Cell("slurmctld away", "release:before")]
    cells += [Cell("slurmdbd killed", point) for point in ("sbatch:before", "release:before", "acct:before")]
    cells += [Cell("slurmdbd killed", "poll:before", 2), Cell("slurmdbd killed", "acct:before", job=FAILS)]
    cells += [Cell("slurmd killed", "release:before"), Cell("slurmd killed", "poll:after", 2)]
    cells += [Cell("munged killed", point) for point in ("sbatch:before", "release:before", "acct:before")]
    cells += [Cell("munged killed", "poll:before", 2)]
    cells += [
        Cell("sshd killed", point)
        for point in ("sbatch:before", "sbatch:after", "look:before", "look:after", "release:before", "acct:before", "sftp")
    ]
    cells += [Cell("sshd killed", "poll:before", 2)]
    ends = [Cell(fault, point) for fault in ("cut", "swallow", "torn", "triggerer killed") for point in CANCEL]
    ends += [
        Cell(fault, "cancel:before") for fault in ("slurmctld killed", "slurmctld away", "sshd killed", "munged killed", "slurmdbd killed")
    ]
    ends += [Cell("slurmd killed", "cancel:before"), Cell("cut", "look:after")]
    cells += [replace(cell, job=SAVES, cancels=True) for cell in ends]
    cells += [Cell(fault, "cancel:after", 2, STUBBORN, cancels=True) for fault in ("cut", "slurmctld killed")]
    cells += _other_work()
    return [replace(cell, short=str(cell) in SHORT) for cell in cells]


def _other_work() -> list[Cell]:
    """The same accidents to what is not one job that a triggerer waits for."""
    arrays = [Cell("cut", "sbatch:after"), Cell("worker killed", "release:before"), Cell("triggerer killed", "acct:before")]
    pushed = [Cell("triggerer killed", "poll:after", 2, PUT_BACK)]
    pushed += [Cell(fault, "poll:before", 4, PUT_BACK) for fault in ("slurmctld restarted", "slurmctld killed")]
    pushed += [Cell("cut", "acct:after", job=PUSHED_OUT)]
    given_up = [Cell("worker killed", "cancel:before"), Cell("cut", "cancel:after")]
    waited = [Cell("worker killed", "poll:after", 2), Cell("cut", "acct:after")]
    reconciled = [Cell("reconciler killed", point) for point in CANCEL]
    return [
        *(replace(cell, job=ARRAY) for cell in arrays),
        *pushed,
        *(replace(cell, job=CHANGED) for cell in given_up),
        *(replace(cell, deferrable=False) for cell in waited),
        *(replace(cell, job=SAVES, cancels=True, on_kill=False) for cell in reconciled),
    ]


#: Seconds each, and every kind of loss once.
SHORT = (
    "cut @ sbatch:after",
    "torn @ release:after",
    "worker killed @ record:before",
    "triggerer killed @ poll:after#2",
    "swallow @ acct:before (fails)",
    "cut @ cancel:before (saves)",
)

CELLS = _cells()
