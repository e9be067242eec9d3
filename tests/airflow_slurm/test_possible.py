"""Requests held against a site: what can never run is refused with the nearest that can; what isn't known is let through."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_slurm.errors import UnreadableAnswer
from airflow_slurm.resources import Gres, Resources
from airflow_slurm.site import parse as site_parse
from airflow_slurm.site.capability import Capability, NodeGroup, Partition
from airflow_slurm.site.possible import check
from airflow_slurm.spec import JobSpec

from .sites import VERSIONS, record_of

BOTH = pytest.mark.parametrize("version", VERSIONS)


def problems(site: Capability, **asked: Any) -> list[str]:
    return [str(problem) for problem in check(JobSpec(command=("true",), **asked), site).impossible]


POSSIBLE: list[dict[str, Any]] = [
    {},
    {"partition": "gpu", "gpus_per_node": 2, "gpu_type": "a100", "nodes": 2, "account": "ml", "qos": "normal", "mem": "31G"},
    {"partition": "gpu", "gres": "gpu:h100:2", "time_limit": "1-00:00:00"},
    {"partition": "gpu", "qos": "long", "time_limit": "6-00:00:00"},
    {"partition": "debug,batch", "time_limit": 60},
    {"gpus": 6},
    {"gpus": 4, "gpu_type": "A100"},
    {"constraint": "a100&ib"},
    {"constraint": "a100|b200"},
    {"constraint": "[a100*1&h100*1]"},
    {"licenses": "matlab:4,heavy"},
    {"reservation": "maint"},
    {"partition": "closed"},
    {"mem": "0"},
    {"mem_per_cpu": "30G", "cpus_per_task": 2},
    {"ntasks": 8},
    {"partition": "scavenge", "time_limit": "UNLIMITED", "cpus_per_task": 2},
    {"components": [{"partition": "gpu", "gpus_per_node": 1}]},
]


@BOTH
@pytest.mark.parametrize("asked", POSSIBLE, ids=str)
def test_what_can_run_is_let_through(version: str, asked: dict[str, Any]) -> None:
    assert problems(record_of(version), **asked) == []


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"partition": "gpus"}, "partition: 'gpus' is not known at this site (nearest: gpu)"),
    ({"qos": "lang"}, "qos: 'lang' is not known at this site (nearest: long)"),
    ({"qos": "scavenger"}, "qos: 'scavenger' may not be asked for (nearest: long or normal or small)"),
    ({"account": "nobody"}, "account: 'nobody' is no account of root here (nearest: ml or root)"),
    ({"account": "root", "qos": "long"}, "qos: 'long' may not be asked for in account root (nearest: normal)"),
    ({"account": "root", "partition": "gpu"}, "account: 'root' may not use partition gpu (nearest: ml)"),
    ({"partition": "gpu", "qos": "small"}, "qos: 'small' may not use partition gpu (nearest: normal or long)"),
    ({"partition": "scavenge", "qos": "long"}, "qos: 'long' may not use partition scavenge"),
    ({"reservation": "maintenance"}, "reservation: 'maintenance' is not known at this site (nearest: maint)"),
    ({"licenses": "matlap:1"}, "licenses: 'matlap' is not known at this site (nearest: matlab)"),
    ({"licenses": "matlab:5"}, "licenses: 5 of matlab; the site has 4 (nearest: matlab:4)"),
    ({"partition": "gpu", "gpus_per_node": 8}, "gpus_per_node: partition gpu has no gpu:8 a node (nearest: gpu:2 a node)"),
    (
        {"partition": "gpu", "gpus_per_node": 1, "gpu_type": "b200"},
        "gpus_per_node: partition gpu has no gpu:b200:1 a node (nearest: gpu:a100:2 or gpu:h100:2)",
    ),
    (
        {"partition": "gpu", "gpus_per_node": 2, "gpu_type": "h100", "nodes": 2},
        "gpus_per_node: partition gpu has no gpu:h100:2 a node on 2 nodes (nearest: gpu:h100:2 a node on 1 nodes)",
    ),
    ({"gres": "gpu:a100:4"}, "gres: partition batch has no gpu:a100:4 a node (nearest: gpu:a100:2 a node)"),
    ({"gpus": 7}, "gpus: 7 GPUs; partition batch has 6 in all (nearest: 6)"),
    ({"partition": "debug", "gpus": 1}, "gpus: partition debug has no gpu:1 a node"),
    ({"partition": "gpu", "time_limit": "2-00:00:00"}, "time_limit: 2-00:00:00 is more than partition gpu allows (nearest: 1-00:00:00)"),
    ({"partition": "debug", "time_limit": 60}, "time_limit: 01:00:00 is more than partition debug allows (nearest: 00:30:00)"),
    ({"partition": "gpu", "nodes": 3}, "nodes: 3 nodes; partition gpu gives a job at most 2 (nearest: 2)"),
    ({"nodes": 5}, "nodes: 5 nodes; partition batch gives a job at most 4 (nearest: 4)"),
    ({"partition": "big", "nodes": 1}, "nodes: 1 nodes; partition big takes jobs of at least 2 (nearest: 2)"),
    ({"partition": "gpu", "mem": "40G"}, "mem: 40960 MiB a node; partition gpu allows 32000 (nearest: 32000M)"),
    ({"mem": "999G"}, "mem: partition batch has no 1022976 MiB a node (nearest: 64000 MiB a node)"),
    ({"cpus_per_task": 3}, "cpus_per_task: partition batch has no 3 CPUs a node (nearest: 2 CPUs a node)"),
    ({"ntasks": 9}, "ntasks: 9 tasks need 9 CPUs; partition batch has 8 for them (nearest: 8)"),
    (
        {"ntasks": 4, "cpus_per_task": 2, "partition": "gpu", "constraint": "a100"},
        "ntasks: 4 tasks need 8 CPUs; partition gpu has 4 for them (nearest: 2)",
    ),
    ({"constraint": "quantum"}, "constraint: 'quantum' is a feature of no node of the partition (nearest: a100 or bigdisk or h100 or ib)"),
    ({"constraint": "a100&bigdisk"}, "constraint: no node of the partition has all of a100&bigdisk (nearest: a100&ib)"),
    ({"qos": "small", "gpus": 2}, "gpus: 2 gres/gpu a job; QOS small in partition batch allows 1 (nearest: 1)"),
    (
        {"partition": "scavenge", "nodes": 2, "cpus_per_task": 2},
        "cpus_per_task: 4 cpu a job; QOS small in partition scavenge allows 2 (nearest: 2)",
    ),
    (
        {"components": [{"partition": "gpu", "gpus_per_node": 3}]},
        "components[0].gpus_per_node: partition gpu has no gpu:3 a node (nearest: gpu:2 a node)",
    ),
]


@BOTH
@pytest.mark.parametrize(("asked", "said"), IMPOSSIBLE, ids=lambda value: str(value)[:60])
def test_what_can_never_run_is_named_with_the_nearest_that_can(version: str, asked: dict[str, Any], said: str) -> None:
    assert said in problems(record_of(version), **asked)


@pytest.mark.parametrize(("array", "last"), [("0-1001", 1001), ("5,2000%4", 2000), ("0-99999999999:2", 99999999999)])
def test_an_array_with_too_high_a_number_is_refused(array: str, last: int) -> None:
    assert problems(record_of("22.05"), array=array) == [f"array: index {last}; the site's highest is 1000 (nearest: indices up to 1000)"]


def test_an_array_up_to_the_sites_highest_number_is_taken() -> None:
    assert problems(record_of("22.05"), array="0-1000:5000%2000") == []


@pytest.mark.parametrize("asked", [asked for asked, _ in IMPOSSIBLE], ids=str)
def test_a_site_of_which_nothing_is_known_refuses_nothing(asked: dict[str, Any]) -> None:
    assert problems(Capability(0.0), **asked) == []


@pytest.mark.parametrize("part", ["partitions", "nodes", "qos", "associations", "reservations", "licenses", "enforce"])
def test_each_unknown_part_only_takes_refusals_away(part: str) -> None:
    site = replace(record_of("24.11"), **{part: None})
    for asked, _ in IMPOSSIBLE:
        assert set(problems(site, **asked)) <= set(problems(record_of("24.11"), **asked)), asked


def test_what_was_not_checked_is_said() -> None:
    site = replace(record_of("24.11"), nodes=None, not_checked={"nodes": "permission denied"})
    verdict = check(JobSpec(command=("true",), constraint="[a*1&b*2]"), replace(site, nodes=record_of("24.11").nodes))
    assert "nodes: permission denied" in verdict.not_checked
    assert any("constraint [a*1&b*2]" in text for text in verdict.not_checked)


def test_names_that_a_submit_plugin_may_change_are_not_refused() -> None:
    site = replace(record_of("24.11"), rewrites="lua")
    assert problems(site, partition="alias", qos="gold", account="x") == []
    assert problems(site, gpus_per_node=2, mem="60G") == []
    assert problems(site, partition="gpu", gpus_per_node=8) != []


def test_limits_of_what_a_submit_plugin_may_choose_otherwise_refuse_nothing() -> None:
    site = replace(record_of("24.11"), rewrites="lua")
    assert problems(site, partition="debug", time_limit=60) == []
    assert problems(site, partition="gpu", qos="small", nodes=2) == []


def test_names_are_taken_in_any_case_as_slurm_takes_them() -> None:
    assert problems(record_of("24.11"), partition="gpu", account="ML", qos="Normal") == []


def test_an_account_below_one_that_is_allowed_may_be_meant() -> None:
    """Newer versions take the accounts below a listed one; which those are is not asked for."""
    site = record_of("24.11")
    part = replace(site.partition("gpu") or Partition("gpu"), allow_accounts=("physics",), allow_qos=None)
    site = replace(site, partitions=(part,))
    assert problems(site, partition="gpu", account="ml") == []
    assert problems(replace(site, version="22.05.8"), partition="gpu", account="ml") != []


def test_nodes_that_are_powered_down_and_not_shown_may_hold_what_is_asked_for() -> None:
    site = Capability(0.0, partitions=(Partition("p", default=True, total_nodes=9),), nodes=(NodeGroup("p", 1, 4, 8000),))
    assert problems(site, gpus_per_node=8, cpus_per_task=64) == []
    shown = replace(site, nodes=(NodeGroup("p", 9, 4, 8000),))
    assert problems(shown, gpus_per_node=8) != []


def test_beside_ntasks_the_tasks_of_a_node_are_only_the_most_it_gets() -> None:
    assert problems(record_of("24.11"), ntasks=2, ntasks_per_node=8) == []
    assert problems(record_of("24.11"), ntasks_per_node=8) != []


@pytest.mark.parametrize("text", ["gpu:3090:8", "gpu:3090:8(S:0,1)", "gpu:1g.10gb:8", "gpu:8", "gpu:(null):8", "gpu:a100:no_consume:8"])
def test_gpus_are_counted_whatever_their_type_is_called(text: str) -> None:
    nodes = site_parse.nodes(f"p|1|4|8000|{text}|(null)|idle")
    site = Capability(0.0, partitions=(Partition("p", default=True),), nodes=nodes)
    assert problems(site, gpus_per_node=8) == []
    assert problems(site, gpus_per_node=9) != []


def test_a_node_whose_generic_resources_cannot_be_read_is_not_taken_for_an_empty_one() -> None:
    with pytest.raises(UnreadableAnswer, match="generic resources"):
        site_parse.nodes("p|1|4|8000|gpu:a100:2,??|(null)|idle")


def test_limits_that_are_not_enforced_refuse_nothing() -> None:
    site = replace(record_of("24.11"), enforce=())
    assert problems(site, qos="small", gpus=2) == []
    assert problems(site, account="nobody") == []


SITES = st.builds(
    Capability,
    st.just(0.0),
    partitions=st.just((Partition("p", default=True, total_nodes=8),)),
    nodes=st.lists(
        st.builds(
            NodeGroup, st.just("p"), st.integers(1, 4), st.integers(1, 8), st.integers(1, 4096),
            st.lists(st.builds(Gres, st.just("gpu"), st.sampled_from(["a", "b"]), st.integers(1, 8)), max_size=1).map(tuple),
        ),
        min_size=1, max_size=3,
    ).map(tuple),
)  # fmt: skip


@given(SITES, st.data())
def test_a_request_made_from_nodes_that_are_there_is_never_refused(site: Capability, data: st.DataObject) -> None:
    group = data.draw(st.sampled_from(site.nodes or ()))
    gpu = group.gres[0] if group.gres else None
    asked = Resources(
        nodes=data.draw(st.integers(1, min(group.nodes, 8))),
        cpus_per_task=data.draw(st.integers(1, group.cpus)),
        mem=f"{data.draw(st.integers(1, group.memory_mb))}M",
        gpus_per_node=data.draw(st.integers(1, gpu.count)) if gpu else None,
        gpu_type=data.draw(st.sampled_from([None, gpu.type])) if gpu else None,
    )
    spec = JobSpec(command=("true",), **{f: getattr(asked, f) for f in ("nodes", "cpus_per_task", "mem", "gpus_per_node", "gpu_type")})
    assert check(spec, site).impossible == []
