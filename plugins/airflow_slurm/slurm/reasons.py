"""Why a job waits: every reason of Slurm 22.05 to 24.11 in one table, and whether waiting helps.

The names are those in ``job_state_reason`` of both versions (the tests hold both lists). Many are families, such as
``QOSMaxGRESPerJob``: a limit of a QOS or an association (``QOS…``, ``Assoc…``), on one job, a node, a user, an account or
the whole group. A reason that is not in the table only ever waits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase


class Clears(StrEnum):
    """What has to happen for the reason to go away."""

    ITSELF = "by itself"
    """Other jobs end, a time comes, usage decays."""
    OPERATOR = "by a person"
    """Somebody has to release, repair, open or raise something; it is no fault of the request."""
    NEVER = "never"
    """The request itself can't be met. Another request could."""
    ENDED = "it has ended"
    """Says how a job ended, not why it waits."""
    UNKNOWN = "unknown"
    """Not in the table."""


@dataclass(frozen=True)
class Reason:
    """One row of the table.

    :ivar meaning: in a few words, for a log.
    :ivar confirm_s: for how long a reason that never clears has to be seen before it is believed: some are also shown
        for a while when nodes are down.
    """

    meaning: str
    clears: Clears
    confirm_s: float = 0.0

    @property
    def hopeless(self) -> bool:
        """Whether a job that waits for this reason will never start."""
        return self.clears is Clears.NEVER


_ITSELF, _OPERATOR, _NEVER, _ENDED = Clears.ITSELF, Clears.OPERATOR, Clears.NEVER, Clears.ENDED
#: Two of the reasons are also given while the nodes that would fit are down or drained (squeue(1), PartitionNodeLimit).
_NODES_MAY_BE_DOWN_S = 300.0

#: First match wins. A pattern is a name, or a family with ``*`` in it.
TABLE: tuple[tuple[str, Reason], ...] = (
    ("None", Reason("the scheduler has not looked at it yet", _ITSELF)),
    ("WaitingForScheduling", Reason("the scheduler has not looked at it yet", _ITSELF)),
    ("SchedDefer", Reason("the scheduler looks at it later", _ITSELF)),
    ("Priority", Reason("jobs of higher priority come first", _ITSELF)),
    ("Resources", Reason("the resources are in use", _ITSELF)),
    ("Dependency", Reason("it waits for another job", _ITSELF)),
    ("DependencyNeverSatisfied", Reason("the job it depends on ended in a way it did not ask for", _NEVER)),
    ("BeginTime", Reason("its begin time has not come; after a requeue, Slurm sets one", _ITSELF)),
    ("Licenses", Reason("the licences are in use", _ITSELF)),
    ("Reservation", Reason("its reservation has not begun", _ITSELF)),
    ("ReservationDeleted", Reason("its reservation was deleted and it is held", _OPERATOR)),
    ("ReservationInvalid", Reason("its reservation can't be used", _OPERATOR)),
    ("Prolog", Reason("the controller's prolog is running", _ITSELF)),
    ("Cleaning", Reason("its previous run is still being cleaned up", _ITSELF)),
    ("JobArrayTaskLimit", Reason("as many tasks of the array run as it allows", _ITSELF)),
    ("MpiPortsBusy", Reason("the ports for MPI are in use", _ITSELF)),
    ("MaxPoweredUpNodes", Reason("as many nodes are powered up as may be", _ITSELF)),
    ("FedJobLock", Reason("the clusters of a federation agree on who runs it", _ITSELF)),
    ("BurstBufferResources", Reason("the burst buffer is in use", _ITSELF)),
    ("BurstBufferStageIn", Reason("files are copied into the burst buffer", _ITSELF)),
    ("BurstBufferOperation", Reason("an operation of the burst buffer failed", _OPERATOR)),
    ("PowerNotAvail", Reason("there is not enough power for it now", _ITSELF)),
    ("PowerReserved", Reason("power is reserved for something else now", _ITSELF)),
    ("ReqNodeNotAvail", Reason("a node it needs is in use, reserved, down or drained", _ITSELF)),
    ("Nodes required for job are DOWN*", Reason("nodes it needs are down, drained or reserved", _ITSELF)),
    ("NodeDown", Reason("a node it needs is down", _OPERATOR)),
    ("FrontEndDown", Reason("no front end node is up", _OPERATOR)),
    ("BlockMaxError", Reason("the system's blocks are in error", _OPERATOR)),
    ("BlockFreeAction", Reason("the system's blocks are being freed", _ITSELF)),
    ("PartitionDown", Reason("the partition is down", _OPERATOR)),
    ("PartitionInactive", Reason("the partition is inactive", _OPERATOR)),
    ("PartitionTimeLimit", Reason("it asks for more time than the partition allows", _NEVER)),
    ("PartitionNodeLimit", Reason("it asks for fewer or more nodes than the partition allows", _NEVER, _NODES_MAY_BE_DOWN_S)),
    ("PartitionConfig", Reason("the partition can't give what it asks for", _NEVER, _NODES_MAY_BE_DOWN_S)),
    ("BadConstraints", Reason("no set of nodes fits what it asks for", _NEVER)),
    ("Constraints", Reason("no set of nodes fits what it asks for", _NEVER)),
    ("MaxMemPerLimit", Reason("it asks for more memory a CPU or node than is allowed", _NEVER)),
    ("JobHeldUser", Reason("its user, or a coordinator, holds it", _OPERATOR)),
    ("JobHeldAdmin", Reason("an administrator holds it", _OPERATOR)),
    ("JobHoldMaxRequeue", Reason("it was put back too often and is held", _OPERATOR)),
    ("job requeued in held state", Reason("it was put back and is held", _OPERATOR)),
    ("launch failed requeued held", Reason("it could not be launched, was put back and is held", _OPERATOR)),
    ("InvalidAccount", Reason("its account is not valid", _NEVER)),
    ("InvalidQOS", Reason("its QOS is not valid", _NEVER)),
    ("AccountNotAllowed", Reason("its account may not use this partition", _NEVER)),
    ("QOSNotAllowed", Reason("its QOS may not use this partition", _NEVER)),
    ("AccountingPolicy", Reason("a rule of accounting stops it", _OPERATOR)),
    ("QOSUsageThreshold", Reason("recent use is above what its QOS allows", _ITSELF)),
    ("QOSJobLimit", Reason("as many jobs of its QOS run as may", _ITSELF)),
    ("QOSResourceLimit", Reason("its QOS uses as much as it may", _ITSELF)),
    ("QOSTimeLimit", Reason("its QOS has used up its time", _OPERATOR)),
    ("AssociationJobLimit", Reason("as many jobs of its account run as may", _ITSELF)),
    ("AssociationResourceLimit", Reason("its account uses as much as it may", _ITSELF)),
    ("AssociationTimeLimit", Reason("its account has used up its time", _OPERATOR)),
    ("DeadLine", Reason("it can't end before its deadline any more", _NEVER)),
    ("*SubmitJob*", Reason("as many jobs are queued as may", _ITSELF)),
    ("QOSMin*", Reason("it asks for less than its QOS demands", _NEVER)),
    ("QOSMax*PerJob*", Reason("it asks for more than its QOS allows one job", _NEVER)),
    ("AssocMax*PerJob*", Reason("it asks for more than its account allows one job", _NEVER)),
    ("QOSMax*PerNode", Reason("it asks for more on a node than its QOS allows one job", _NEVER)),
    ("AssocMax*PerNode", Reason("it asks for more on a node than its account allows one job", _NEVER)),
    ("QOSMax*PerUser*", Reason("this user's jobs use as much as the QOS allows", _ITSELF)),
    ("Max*PerUser", Reason("this user's jobs use as much as the QOS allows", _ITSELF)),
    ("Max*PerAccount", Reason("this account's jobs use as much as the QOS allows", _ITSELF)),
    ("AssocMaxJobsLimit", Reason("as many jobs of this user run as may", _ITSELF)),
    ("QOSGrp*RunMinutes*", Reason("running jobs of its QOS have claimed the minutes there are", _ITSELF)),
    ("AssocGrp*RunMinutes*", Reason("running jobs of its account have claimed the minutes there are", _ITSELF)),
    ("QOSGrp*Minutes*", Reason("its QOS has used up its budget of minutes, until that is reset, raised or decays", _OPERATOR)),
    ("AssocGrp*Minutes*", Reason("its account has used up its budget of minutes, until that is reset, raised or decays", _OPERATOR)),
    ("QOSGrpWallLimit", Reason("its QOS has used up its time, until that is reset, raised or decays", _OPERATOR)),
    ("AssocGrpWallLimit", Reason("its account has used up its time, until that is reset, raised or decays", _OPERATOR)),
    ("QOSGrp*", Reason("all jobs of its QOS use as much as they may", _ITSELF)),
    ("AssocGrp*", Reason("all jobs of its account use as much as they may", _ITSELF)),
    ("SystemFailure", Reason("Slurm, a file system or the network failed", _ENDED)),
    ("JobLaunchFailure", Reason("it could not be launched", _ENDED)),
    ("NonZeroExitCode", Reason("it ended with an exit code", _ENDED)),
    ("RaisedSignal", Reason("a signal ended it", _ENDED)),
    ("TimeLimit", Reason("it reached its time limit", _ENDED)),
    ("InactiveLimit", Reason("it was inactive for too long", _ENDED)),
    ("OutOfMemory", Reason("it ran out of memory", _ENDED)),
)

_UNKNOWN = Reason("not known here", Clears.UNKNOWN)


def explain(reason: str) -> Reason:
    """The row of a reason as squeue or scontrol writes it: with a list of nodes after it, with blanks or underscores."""
    spaced = reason.strip().strip("()").replace("_", " ")
    head = re.split(r"[,(:]", spaced, maxsplit=1)[0].strip() or "None"
    for name, row in TABLE:
        if fnmatchcase(head, name) or fnmatchcase(spaced, name):
            return row
    return _UNKNOWN


def in_words(reason: str) -> str:
    """``<meaning>; clears by itself``, for a log; empty where nothing is known."""
    row = explain(reason)
    if row.clears is Clears.UNKNOWN or not reason or reason == "None":
        return ""
    how = {_NEVER: "never clears", _ENDED: ""}.get(row.clears, f"clears {row.clears.value}")
    return row.meaning + (f"; {how}" if how else "")
