"""The commands that tell what a site offers; see :mod:`airflow_slurm.site.parse` for what they answer.

Columns are named and separated by ``|``. Nothing here changes anything, and nothing is larger than a partition table.
"""

from __future__ import annotations

from airflow_slurm.slurm.commands import DELIMITER, clusters_option

#: sinfo: partition, nodes, CPUs, memory in MiB, gres, features, state; each a node's, with as many nodes as are alike.
NODE_FORMAT = "%R|%D|%c|%m|%G|%f|%T"
QOS_COLUMNS = ("Name", "Flags", "MaxWall", "MaxTRES", "MaxTRESPerNode", "MaxJobsPerUser", "MaxSubmitJobsPerUser", "Preempt")
ASSOCIATION_COLUMNS = ("Cluster", "Account", "User", "Partition", "QOS", "DefaultQOS")


def user() -> list[str]:
    """The login's own name."""
    return ["id", "--user", "--name"]


def configuration(cluster: str | None = None) -> list[str]:
    """slurm.conf as the controller has it."""
    return ["scontrol", *clusters_option(cluster), "show", "config"]


def partitions(cluster: str | None = None) -> list[str]:
    """Limits of every partition, one a line; hidden ones may be asked for too."""
    return ["scontrol", *clusters_option(cluster), "--all", "--oneliner", "show", "partition"]


def nodes(cluster: str | None = None) -> list[str]:
    """Nodes of every partition, those that are exactly alike on one line."""
    return ["sinfo", "--all", "--noheader", "--exact", f"--format={NODE_FORMAT}", *clusters_option(cluster)]


def reservations(cluster: str | None = None) -> list[str]:
    """Reservations, one a line."""
    return ["scontrol", *clusters_option(cluster), "--oneliner", "show", "reservation"]


def licenses(cluster: str | None = None) -> list[str]:
    """Licences, one a line."""
    return ["scontrol", *clusters_option(cluster), "--oneliner", "show", "licenses"]


def qos() -> list[str]:
    """Every QOS with its limits on one job and one user."""
    return _sacctmgr("qos", QOS_COLUMNS)


def associations(name: str) -> list[str]:
    """The accounts of one user, with the QOS that may be asked for in each.

    :param name: from :func:`user`.
    """
    return [*_sacctmgr("associations", ASSOCIATION_COLUMNS), "where", f"user={name}"]


def clusters() -> list[str]:
    """Names of the clusters that share the accounting."""
    return _sacctmgr("clusters", ("Cluster",))


def json_ability() -> list[str]:
    """Small and harmless: ends with 0 only where the serialiser for JSON is installed."""
    return ["sacct", "--json", "--jobs=1", "--starttime=now"]


def _sacctmgr(what: str, columns: tuple[str, ...]) -> list[str]:
    shown = ["sacctmgr", "--noheader", "--parsable2", "show", what, f"format={','.join(columns)}"]
    assert DELIMITER == "|"  # what --parsable2 writes
    return shown
