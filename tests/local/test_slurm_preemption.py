"""Preemption of the private Slurm is asked for: without it, nothing of its configuration says so."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from local.slurm_config import ClusterSettings, slurm_conf


def partitions(text: str) -> dict[str, str]:
    lines = [line.removeprefix("PartitionName=") for line in text.splitlines() if line.startswith("PartitionName=")]
    return {line.split()[0]: line for line in lines}


def test_a_cluster_preempts_only_where_it_was_asked_for(tmp_path: Path) -> None:
    plain = ClusterSettings("c", "me", "host", tmp_path, tmp_path, 1, 0, True, {"slurmctld": 1, "slurmdbd": 2, "n1": 3, "sshd": 4})
    text = slurm_conf(plain)
    assert "PreemptType=preempt/none\n" in text
    assert "PreemptMode" not in text
    assert list(partitions(text)) == ["DEFAULT", "batch", "other"]
    text = slurm_conf(dataclasses.replace(plain, preemption=True))
    found = partitions(text)
    assert "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n" in text
    assert "PreemptMode=OFF" in found["DEFAULT"]
    assert [name for name, line in found.items() if "PreemptMode=" in line and name != "DEFAULT"] == ["scavenge", "spot"]
    assert [name for name, line in found.items() if "PriorityTier" in line] == ["urgent"]
