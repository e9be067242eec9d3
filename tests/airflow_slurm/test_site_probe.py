"""What a site offers: read from what real Slurms of two versions said, kept as JSON, and asked for anew when it is old."""

from __future__ import annotations

import asyncio
import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_slurm.errors import ImpossibleRequest, SshUnreachable, UnreadableAnswer
from airflow_slurm.resources import Gres, gres_list
from airflow_slurm.site import parse as site_parse
from airflow_slurm.site.capability import Capability, NodeGroup, Partition, Qos, duration
from airflow_slurm.site.probe import probe
from airflow_slurm.site.record import SiteRecords, check_possible
from airflow_slurm.spec import JobSpec

from .conftest import recorded
from .sites import VERSIONS, RecordedSite, record_of

BOTH = pytest.mark.parametrize("version", VERSIONS)


@BOTH
def test_the_whole_record_is_read_from_either_version(version: str) -> None:
    site = record_of(version)
    assert site.version is not None
    assert site.version.startswith(version)
    assert (site.cluster, site.user, site.clusters) == ("c1", "root", ("c1",))
    assert (site.accounting, site.json, site.requeue, site.kill_wait_s, site.max_array_size) == (True, True, True, 5, 1001)
    assert (site.enforce, site.preemption, site.rewrites) == (("associations", "limits", "qos"), "preempt/qos", None)
    assert site.licenses == {"heavy": 1, "matlab": 4}
    assert site.not_checked == {}


@BOTH
def test_partitions_with_their_limits(version: str) -> None:
    site = record_of(version)
    assert [p.name for p in site.partitions or ()] == ["batch", "gpu", "debug", "scavenge", "closed", "big"]
    assert site.partition("gpu") == Partition(
        "gpu", max_time_s=86400, max_nodes=2, total_nodes=3, max_memory_per_node_mb=32000, allow_accounts=("ml",), allow_qos=("normal", "long")
    )  # fmt: skip
    assert site.partition("batch") == Partition("batch", default=True, max_time_s=2 * 86400, total_nodes=4)
    scavenge, closed, big = site.partition("scavenge"), site.partition("closed"), site.partition("big")
    assert scavenge is not None
    assert (scavenge.max_time_s, scavenge.qos, scavenge.deny_qos) == (None, "small", ("long",))
    assert closed is not None
    assert closed.state == "DOWN"
    assert big is not None
    assert (big.min_nodes, big.deny_accounts) == (2, ("other",))


@BOTH
def test_nodes_with_gpu_types_and_features(version: str) -> None:
    groups = record_of(version).nodes_of("gpu")
    assert {(g.gres, g.features) for g in groups} == {
        ((Gres("gpu", "a100", 2),), ("a100", "ib")),
        ((Gres("gpu", "h100", 2),), ("h100", "ib")),
    }
    assert sum(g.nodes for g in groups if "a100" in g.features) == 2
    assert {(g.cpus, g.memory_mb) for g in groups} == {(2, 64000)}


@BOTH
def test_qos_associations_and_reservations(version: str) -> None:
    site = record_of(version)
    assert site.of_qos("long") == Qos("long", ("PartitionTimeLimit",), 7 * 86400)
    assert site.of_qos("small") == Qos("small", max_tres_per_job={"cpu": 2, "gres/gpu": 1}, max_running=1, max_queued=2)
    assert {(a.account, a.qos) for a in site.associations or ()} == {("ml", ("long", "normal", "small")), ("root", ("normal",))}
    (maintenance,) = site.reservations or ()
    assert (maintenance.name, maintenance.nodes, maintenance.state) == ("maint", 1, "INACTIVE")
    assert maintenance.start is not None
    assert maintenance.end == maintenance.start + 3600


@BOTH
async def test_a_part_that_is_refused_stays_open_and_the_rest_is_known(version: str) -> None:
    site = await probe(RecordedSite(version, broken=("qos", "nodes")))  # type: ignore[arg-type]
    assert (site.qos, site.nodes) == (None, None)
    assert set(site.not_checked) == {"qos", "nodes"}
    assert "permission denied" in site.not_checked["qos"]
    assert site.partitions


async def test_a_text_that_cant_be_read_concludes_nothing() -> None:
    site = await probe(RecordedSite("22.05", changed={"nodes": "batch|many|2|64000|(null)|(null)|idle\n"}))  # type: ignore[arg-type]
    assert site.nodes is None
    assert "unknown form" in site.not_checked["nodes"]


async def test_a_site_without_accounting_is_not_asked_for_qos() -> None:
    config = recorded("site_22.05/config.txt").replace("accounting_storage/slurmdbd", "accounting_storage/none")
    asked = RecordedSite("22.05", changed={"config": config})
    site = await probe(asked)  # type: ignore[arg-type]
    assert site.accounting is False
    assert {"qos", "associations"} <= set(site.not_checked)
    assert not {"qos", "associations", "clusters", "json"} & set(asked.asked)


@BOTH
def test_the_summary_names_what_a_person_asks_for(version: str) -> None:
    text = record_of(version).summary()
    for words in (
        f"Slurm {version}",
        "partition gpu: up, 3 nodes, limit 1-00:00:00, at most 2 a job, gpu:a100:2 or gpu:h100:2 a node",
        "QOS: normal, long, small, scavenger",
        "accounts of root: ml, root",
        "accounting: kept",
        "largest array: 1001",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800), ("90:30", 5430), ("00:30:00", 1800), ("1-00:00:00", 86400), ("2-12", 216000), ("1-06:30", 109800),
        ("UNLIMITED", None), ("", None), ("N/A", None),
    ],
)  # fmt: skip
def test_a_limit_in_every_spelling(text: str, seconds: int | None) -> None:
    assert site_parse.limit_s(text) == seconds


@given(st.integers(0, 10**8))
def test_a_duration_reads_back(seconds: int) -> None:
    assert site_parse.limit_s(duration(seconds)) == seconds


@given(st.text())
def test_no_text_is_taken_for_a_limit_by_chance(text: str) -> None:
    try:
        value = site_parse.limit_s(text)
    except UnreadableAnswer:
        return
    assert value is None or set(text.strip()) <= set("0123456789-:")


WORDS = st.text("abcxyz019_.", min_size=1, max_size=6).filter(lambda word: word[0].isalpha())


@given(st.lists(st.builds(Gres, WORDS, st.one_of(st.just(""), WORDS), st.integers(1, 64)), max_size=4))
def test_generic_resources_read_back_with_and_without_sockets(gres: list[Gres]) -> None:
    assert gres_list(",".join(f"{g}(S:0-1)" for g in gres)) == gres
    assert gres_list(",".join(map(str, gres))) == gres


@given(st.text())
def test_any_text_of_generic_resources_is_read_or_left_out(text: str) -> None:
    for gres in gres_list(text):
        assert gres.name in text


@BOTH
def test_the_record_survives_json(version: str) -> None:
    site = record_of(version)
    assert Capability.from_json(json.loads(json.dumps(site.to_json()))) == site


def test_a_record_of_a_newer_version_is_read_as_far_as_it_is_known() -> None:
    value = record_of("22.05").to_json() | {"quantum": True}
    assert Capability.from_json(value) == record_of("22.05")


@pytest.fixture
def records(tmp_path: Path) -> SiteRecords:
    return SiteRecords(tmp_path / "sites" / "x.json", max_age_s=3600)


async def test_the_site_is_asked_once_and_again_when_the_record_is_old(records: SiteRecords) -> None:
    site = RecordedSite("24.11")
    first = await records.get(site)  # type: ignore[arg-type]
    assert await records.get(site) == first  # type: ignore[arg-type]
    assert site.asked.count("version") == 1
    assert first is not None
    records.save(replace(first, probed_at=time.time() - 3601))
    again = await records.get(site)  # type: ignore[arg-type]
    assert again is not None
    assert site.asked.count("version") == 2
    assert again.probed_at > time.time() - 60


async def test_a_file_that_is_no_record_counts_as_none(records: SiteRecords) -> None:
    records.path.parent.mkdir()
    for text in ("", "[1]", '{"probed_at": 1, "partitions": [3]}', "{}"):
        records.path.write_text(text)
        assert records.load() is None


@contextmanager
def somebody_asks(records: SiteRecords) -> Iterator[None]:
    with open(records.path.with_suffix(".lock"), "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        yield


async def test_of_many_that_find_it_old_one_asks(records: SiteRecords) -> None:
    old = replace(record_of("24.11"), probed_at=1.0)
    records.save(old)
    site = RecordedSite("24.11")
    with somebody_asks(records):
        assert await records.get(site) == old  # type: ignore[arg-type]
    assert site.asked == []


class Gone(RecordedSite):
    async def version(self) -> str:
        raise SshUnreachable("no route to host")


TOO_MANY = JobSpec(command=("true",), partition="gpu", gpus_per_node=16)


async def test_an_impossible_request_is_refused_on_a_fresh_record(records: SiteRecords) -> None:
    with pytest.raises(ImpossibleRequest, match="gpus_per_node.*nearest: gpu:2 a node"):
        await check_possible(RecordedSite("24.11"), records, TOO_MANY)  # type: ignore[arg-type]


async def test_a_refusal_on_the_word_of_a_fresh_record_costs_no_command(records: SiteRecords) -> None:
    records.save(await probe(RecordedSite("24.11")))  # type: ignore[arg-type]
    site = RecordedSite("24.11")
    with pytest.raises(ImpossibleRequest, match="gpus_per_node.*nearest: gpu:2 a node"):
        await check_possible(site, records, TOO_MANY)  # type: ignore[arg-type]
    assert site.asked == []


async def test_a_refusal_is_never_built_on_an_old_record(records: SiteRecords) -> None:
    small = replace(record_of("24.11"), probed_at=time.time() - 600, nodes=(NodeGroup("gpu", 9, 1, 100),))
    records.save(small)
    fits = JobSpec(command=("true",), partition="gpu", gpus_per_node=2)
    site = RecordedSite("24.11")
    await check_possible(site, records, fits)  # type: ignore[arg-type]
    assert "nodes" in site.asked
    records.save(small)
    await check_possible(Gone("24.11"), records, fits)  # type: ignore[arg-type]


async def test_a_site_that_cant_be_asked_blocks_no_job(records: SiteRecords) -> None:
    await check_possible(Gone("24.11"), records, TOO_MANY)  # type: ignore[arg-type]


async def test_a_site_that_answers_slowly_blocks_no_job(records: SiteRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(RecordedSite):
        async def version(self) -> str:
            await asyncio.sleep(30)
            raise AssertionError("not waited for")

    monkeypatch.setattr("airflow_slurm.site.record.PROBE_TIMEOUT_S", 0.05)
    await check_possible(Slow("24.11"), records, TOO_MANY)  # type: ignore[arg-type]
