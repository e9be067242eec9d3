"""PPO with a generator in a process of its own: answers have an age, the count is always full, and a death leaves nothing behind."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import pyarrow.parquet as pq  # noqa: E402

from include.domain.canonical import sha256_file  # noqa: E402
from include.domain.errors import IntegrityError, SpecError  # noqa: E402
from include.runtime.settings import Settings  # noqa: E402
from include.training.rl import free_running, generators  # noqa: E402
from include.training.rl.arithmetic import truncated_weights  # noqa: E402
from include.training.rl.batch import Sampled  # noqa: E402
from include.training.rl.draw import DrawSettings  # noqa: E402
from include.training.rl.exchange import Exchange, GeneratorPlan, Portion  # noqa: E402
from include.training.rl.free_running import GeneratorSource  # noqa: E402
from include.training.rl.settings import LagSettings  # noqa: E402
from tests.training.align_store import hardly_learnt_store, killed, ppo_spec, run_here  # noqa: E402
from tests.training.harness import Started, Store  # noqa: E402

COUNT = 4 * 12
PORTIONS = {"generation_batch": 4}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return hardly_learnt_store(tmp_path_factory.mktemp("beside"))


def _beside(store: Store, monkeypatch: pytest.MonkeyPatch, trouble: str, salt: str, **lag: Any) -> Started:
    monkeypatch.setattr(generators, "GENERATOR", "tests.training.slow_generator")
    monkeypatch.setenv("ALIGN_TEST_GENERATOR", trouble)
    return run_here(store, ppo_spec(store, salt=salt, generation="own_process", lag=lag), **PORTIONS)


def _impatient_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the trainer wait for a second in that iteration, and as long as it takes in all others."""
    wait = GeneratorSource._wait

    def waiting(self: GeneratorSource, exchange: Exchange, at: int, wanted: Any) -> dict[int, Portion]:
        self.lag = replace(self.lag, wait_s=1.0 if at == step else 300.0)
        return wait(self, exchange, at, wanted)

    monkeypatch.setattr(GeneratorSource, "_wait", waiting)


def _versions(started: Started) -> list[tuple[int, int]]:
    """(iteration from 0, version of the actor) of every rollout."""
    return [(actor["iteration"], actor["published_version"]) for actor in _actors(started)]


def _actors(started: Started) -> list[dict[str, Any]]:
    """What every rollout says of its actor, with its iteration from 0."""
    rows = pq.read_table(started.output("rollouts") / "rollouts.parquet", columns=["iteration", "actor_checkpoint"]).to_pylist()
    return [{**json.loads(row["actor_checkpoint"]), "iteration": row["iteration"] - 1} for row in rows]


def test_without_a_generator_every_answer_is_the_present_actors(store: Store) -> None:
    started = run_here(store, ppo_spec(store, iterations=2), **PORTIONS)
    assert started.code == 0, started.report.message
    assert _versions(started) == [(0, 0)] * 12 + [(1, 1)] * 12
    assert {line["policy_lag_max"] for line in started.lines} == {0.0}
    assert "answers_dropped" not in started.report.metrics
    assert not (started.folder / "exchange").exists()


def test_a_generator_that_is_late_gives_lag_drops_and_the_full_count(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    _impatient_at(2, monkeypatch)
    started = _beside(store, monkeypatch, "hold 2 1", "late")
    assert started.code == 0, started.report.message
    metrics = started.report.metrics
    assert max(line["policy_lag_max"] for line in started.lines) == 1.0
    assert metrics["answers_dropped"] > 0
    assert metrics["answers_made_again"] >= 4
    assert metrics["rollouts_count"] == metrics["rollouts_expected"] == COUNT
    versions = _versions(started)
    assert Counter(iteration for iteration, _ in versions) == dict.fromkeys(range(4), 12)
    assert len({version for _, version in versions}) > 1
    assert all(0 <= iteration - version <= 1 for iteration, version in versions)
    digests = {(actor["published_version"], actor["digest"]) for actor in _actors(started)}
    assert (0, store.places["policy"].digest) in digests
    assert len(digests) == len({version for version, _ in digests}) == len({digest for _, digest in digests}) > 1
    assert max(line["behaviour_ratio_gap"] for line in started.lines if "behaviour_ratio_gap" in line) < 1e-4
    assert not (started.folder / "exchange").exists()


def test_answers_past_the_limit_are_drawn_again_by_the_present_actor(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    started = _beside(store, monkeypatch, "hold 9 9", "too old", limit=0, ahead=1)
    assert started.code == 0, started.report.message
    assert started.report.metrics["answers_dropped"] > 0
    assert all(iteration == version for iteration, version in _versions(started))
    assert started.report.metrics["rollouts_count"] == COUNT


def test_answers_past_the_limit_may_be_kept_and_weigh_less(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    started = _beside(store, monkeypatch, "hold 9 9", "weighed", limit=0, ahead=1, too_old="weight")
    assert started.code == 0, started.report.message
    assert started.report.metrics["answers_kept_old"] > 0
    assert started.report.metrics["answers_dropped"] == 0
    weights = [line["importance_weight"] for line in started.lines if "importance_weight" in line]
    assert weights
    assert all(weight <= 1.0 for weight in weights)
    assert any(iteration > version for iteration, version in _versions(started))


def test_when_the_generator_dies_the_trainer_draws_all_and_says_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    started = _beside(store, monkeypatch, "die 1", "dies")
    assert started.code == 0, started.report.message
    assert any("ended with code 3" in warning for warning in started.report.summary["warnings"])
    assert started.report.metrics["rollouts_count"] == COUNT
    assert started.report.metrics["answers_made_again"] == 36


def test_a_generator_that_lives_and_gives_nothing_is_not_waited_for_to_the_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_running, "HUNG", 2)
    started = _beside(store, monkeypatch, "hang-once 1 0", "hangs", wait_s=1.0)
    assert started.code == 0, started.report.message
    warnings = started.report.summary["warnings"]
    assert any("gave nothing for 1 s (see generator.log); the trainer draws this iteration itself" in words for words in warnings)
    assert sum("2 iterations in a row: it is ended" in words for words in warnings) == 1
    assert started.report.metrics["rollouts_count"] == COUNT


def test_a_generator_whose_trainer_was_gone_before_it_had_loaded_draws_nothing(store: Store, tmp_path: Path) -> None:
    exchange = _exchange(tmp_path)
    draws = DrawSettings(seed=1, prompts_per_iteration=4, temperature=1.0, max_new_tokens=4, precision="fp32", stop_ids=(0,), portion=4)
    policy = str(store.places["policy"].path)
    exchange.put_plan(GeneratorPlan(policy, "sdpa", 1, False, first=0, iterations=1, ahead=1, encoded=((1, 2),), draw=draws, lora=None))
    gone = subprocess.Popen(["true"])
    gone.wait()
    argv = [sys.executable, "-m", generators.GENERATOR, str(exchange.folder), "0", "1", str(gone.pid)]
    began = subprocess.run(argv, timeout=100, check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert began.returncode == 0
    assert exchange.is_ready(0)
    assert exchange.answers(0, 0) is None


def test_killed_its_generator_goes_too_and_what_it_wrote_past_the_checkpoint_is_void(store: Store) -> None:
    spec = ppo_spec(store, salt="killed beside", generation="own_process")
    first = killed(store, spec, "recorded", 3, save_every_steps=2, **PORTIONS)
    assert first.code == -9
    pid = int((first.folder / "exchange" / "ready-0").read_text())
    until = time.monotonic() + 20
    while _runs(pid):
        assert time.monotonic() < until, f"generator {pid} outlives its trainer"
        time.sleep(0.05)
    second = run_here(store, spec, n=2, save_every_steps=2, **PORTIONS)
    assert second.code == 0, second.report.message
    assert (second.report.first_step, second.report.metrics["rollouts_count"]) == (2, COUNT)
    table = pq.read_table(second.output("rollouts") / "rollouts.parquet", columns=["iteration", "actor_checkpoint"]).to_pylist()
    attempts = {row["iteration"]: json.loads(row["actor_checkpoint"])["attempt"] for row in table}
    assert attempts == {1: first.folder.name, 2: first.folder.name, 3: second.folder.name, 4: second.folder.name}


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _exchange(tmp_path: Path) -> Exchange:
    return Exchange.fresh(tmp_path)


def test_weights_go_over_whole_or_not_at_all(tmp_path: Path) -> None:
    exchange, one, two = _exchange(tmp_path), torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    exchange.publish(3, 12, dict(one.named_parameters()), keep=1)
    written = exchange.folder / "weights" / "v00003" / "actor.safetensors"
    assert exchange.load(3, two) == (12, sha256_file(written))
    assert exchange.digest(3) == sha256_file(written)
    assert torch.equal(one.weight, two.weight)
    (exchange.folder / "weights" / "v00004.tmp").mkdir()
    assert exchange.versions() == [3]
    path = exchange.folder / "weights" / "v00003" / "actor.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(IntegrityError, match="corrupt"):
        exchange.load(3, two)
    with pytest.raises(IntegrityError, match="version 7"):
        exchange.load(7, two)


@pytest.mark.parametrize(
    ("devices", "ranks", "visible", "own", "shared"),
    [
        (0, 1, "", None, False),
        (1, 1, "", "0", True),
        (2, 1, "", "1", False),
        (8, 7, "", "7", False),
        (8, 8, "", "0", True),
        (2, 1, "4,GPU-ab", "GPU-ab", False),
        (2, 2, "4,GPU-ab", "4", True),
    ],
)
def test_the_generator_has_a_gpu_of_its_own_or_says_whose_it_shares(
    monkeypatch: pytest.MonkeyPatch, devices: int, ranks: int, visible: str, own: str | None, shared: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    said: list[str] = []
    job = SimpleNamespace(warn=said.append)
    assert generators.generator_environment(job, 0, 1, ranks).get("CUDA_VISIBLE_DEVICES") == own  # type: ignore[arg-type]
    assert [f"{ranks} ranks use all {devices} of this machine" in words for words in said] == [True] * shared


@pytest.mark.parametrize(
    ("ranks", "count", "given", "words"), [(4, 4, ["7", "6", "5", "4"], 0), (6, 3, ["7", "6", "7"], 1), (8, 2, ["0", "0"], 2)]
)
def test_several_generators_share_what_no_rank_has(
    monkeypatch: pytest.MonkeyPatch, ranks: int, count: int, given: list[str], words: int
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    said: list[str] = []
    job: Any = SimpleNamespace(warn=said.append)
    assert [generators.generator_environment(job, n, count, ranks)["CUDA_VISIBLE_DEVICES"] for n in range(count)] == given
    assert len(said) == words


def test_answers_drawn_with_other_bytes_than_were_published_are_refused(tmp_path: Path) -> None:
    exchange, model = _exchange(tmp_path), torch.nn.Linear(2, 2)
    exchange.publish(1, 4, dict(model.named_parameters()), keep=1)
    alone = SimpleNamespace(ranks=SimpleNamespace(gather=lambda value: [value]))
    source = GeneratorSource(alone, None, LagSettings(1, 1, "drop", 2.0, 600.0), SimpleNamespace(encoded=[(1,)]))  # type: ignore[arg-type]
    answers = (Sampled((1,), (2,), (-0.5,), "eos"),)
    source.check(exchange, Portion(1, 4, answers, exchange.digest(1)), [(0, 7)], 1)
    with pytest.raises(IntegrityError, match="drew with weights sha256:0 as version 1, published was sha256:"):
        source.check(exchange, Portion(1, 4, answers, "sha256:0"), [(0, 7)], 1)


def test_older_weights_go_when_newer_come(tmp_path: Path) -> None:
    exchange, model = _exchange(tmp_path), torch.nn.Linear(2, 2)
    for version in range(5):
        exchange.publish(version, version, dict(model.named_parameters()), keep=2)
    assert exchange.versions() == [2, 3, 4]
    with pytest.raises(IntegrityError, match="other weights"):
        exchange.load(4, torch.nn.Linear(2, 2, bias=False))


def test_late_answers_are_counted_once_and_taken_away(tmp_path: Path) -> None:
    exchange = _exchange(tmp_path)
    portion = Portion(0, 0, (Sampled((1,), (2,), (-0.5,), "eos"), Sampled((1,), (3,), (-0.7,), "eos")))
    for number in range(3):
        exchange.put_answers(0, number, portion)
    exchange.put_answers(1, 0, portion)
    assert exchange.answers(0, 1) == portion
    assert exchange.take_away([(0, 0)], before=1) == 4
    assert exchange.take_away([(0, 0)], before=1) == 0
    assert exchange.answers(1, 0) == portion


def test_weights_are_the_ratio_up_to_the_cap() -> None:
    now, sampler = torch.tensor([[0.0, -1.0], [-1.0, -1.0]]), torch.tensor([[-1.0, 0.0], [-3.0, -1.0]])
    found = truncated_weights(now, sampler, torch.tensor([1.0, 2.0]))
    assert torch.allclose(found, torch.tensor([[1.0, 0.36787945], [2.0, 1.0]]))


@pytest.mark.parametrize("lag", [{"limit": -1}, {"weight_cap": 0.5}, {"wait_s": 0}])
def test_senseless_limits_of_lag_are_refused(lag: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"config\.lag"):
        LagSettings.of(Settings({"generation": "own_process", "lag": lag}, "config"))


def test_the_generator_is_ahead_by_the_limit_unless_told_otherwise() -> None:
    for lag, ahead in (({"limit": 2, "ahead": None}, 2), ({"limit": 0}, 0), ({"limit": 0, "ahead": 3}, 3)):
        found = LagSettings.of(Settings({"generation": "own_process", "lag": lag}, "config"))
        assert found is not None
        assert found.ahead == ahead


def test_without_a_generator_there_is_no_lag() -> None:
    assert LagSettings.of(Settings({}, "config")) is None


def test_portions_hold_every_answer_of_an_iteration_in_order() -> None:
    settings = DrawSettings(5, 10, 1.0, 4, "fp32", (2,), 4)
    portions = settings.portions(3, 7)
    assert [len(part) for part in portions] == [4, 4, 2]
    assert len({seed for part in portions for _, seed in part}) == 10
    whole = [item for part in DrawSettings(5, 10, 1.0, 4, "fp32", (2,), 100).portions(3, 7) for item in part]
    assert [item for part in portions for item in part] == whole
