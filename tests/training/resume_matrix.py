"""Program × engine × ranks × ZeRO stage, or tensor × pipeline parallel, precision and variant × moment of death: killed with SIGKILL,
resumed, and compared bit by bit with a run in one go. The cells are in `resume_matrix_cells`.

    make resume-matrix
    PYTHONPATH=.:plugins python -m tests.training.resume_matrix ppo generate    # these programs alone

Prints a line for each moment of each cell as it goes, then a table; exits 1 when one is not exact, or did not die or end
as it should. Cells that were exact with the same code are not run again (`matrix_results`).
"""

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.training.harness import PROJECT, SFT, Started, Store, demonstrations, prompts, tiny_base
from tests.training.matrix_results import Results, code_digest, line, table
from tests.training.resume_matrix_cells import GENERATE, INPUTS, MOMENTS, Cell, cells

KEPT = PROJECT / ".local" / "resume-matrix.json"
DIED = "died"
"""What `kill_at` leaves in the attempt's folder."""
_COST = ("time", "tokens")


@dataclass(frozen=True)
class Outcome:
    """exact: the same losses after the resumption, and the same bytes of all outputs."""

    moment: str
    resumed_at: int
    exact: bool


def figures(started: Started, after: int = 0) -> list[dict[str, Any]]:
    """What was recorded after step `after`, without the clock."""
    path = started.folder / "metrics.jsonl"
    lines = started.lines if path.exists() else []
    return [{k: v for k, v in line.items() if k not in _COST} for line in lines if line["step"] > after]


def results(cell: Cell, started: Started) -> Any:
    """What came out: the digests of all outputs; of rollouts, which name their attempt, all else that is in them."""
    outputs = dict(started.report.outputs)
    if cell.program == "ppo":
        from tests.training.align_store import rollouts_of

        outputs["rollouts"] = rollouts_of(started)  # type: ignore[assignment]
    return outputs


def outcomes(store: Store, cell: Cell, config: dict[str, Any], moments: tuple[str, ...] = ()) -> Iterator[Outcome]:
    """Each moment of one cell (all that it can have, unless told) against a run in one go.

    Raises:
        AssertionError: a run that should have died did not, or one that should have ended well did not.
    """
    name = cell.name
    whole = cell.run(store, cell.spec(store, config, f"{name} in one go"))
    assert whole.code == 0, whole.stderr
    for moment in moments or cell.moments:
        spec = cell.spec(store, config, f"{name} {moment}")
        first = cell.run(store, spec, 1, moment)
        assert first.code != 0, f"{name}: nothing died at {moment}"
        assert (first.folder / DIED).exists(), f"{name}: it did not die at {moment}: {first.stderr}"
        second = cell.run(store, spec, 2)
        assert second.code == 0, second.stderr
        at = second.report.first_step
        same = figures(second) == figures(whole, at) and results(cell, second) == results(cell, whole)
        yield Outcome(moment, at, same)


def prepared(root: Path) -> tuple[Store, dict[str, dict[str, Any]]]:
    """A store below `root` with small inputs for all programs, and each program's configuration."""
    import tests.conftest  # noqa: F401 - makes the cluster's packages importable here, as pytest does
    from tests.training import align_store

    store = Store(root)
    tiny_base(store)
    demonstrations(store)
    store.artifact("policy", Path(store.places["base"].path))
    align_store.preferences(store, "preferences", scored=align_store.planted_scores)
    align_store.rl_prompts(store)
    prompts(store, "asked")
    rewarded = store.run(align_store.reward_spec(store, steps=2, eval_pairs=4))
    assert rewarded.code == 0, rewarded.stderr
    store.artifact("reward_model", rewarded.output("reward_model"))
    small = {"prompts_per_iteration": 8, "minibatch": 4, "epochs": 1, "max_new_tokens": 12, "reward": {"model_weight": 1.0}}
    ppo = {**align_store.PPO, **small}
    return store, {
        "sft": {**SFT, "eval_rows": 0},
        "reward_model": align_store.REWARD,
        "dpo": align_store.DPO,
        "ppo": ppo,
        "generate": GENERATE,
    }


def main(programs: Sequence[str] = ()) -> int:
    """`programs`: those to run; all without any."""
    if unknown := set(programs) - set(INPUTS):
        print(f"{sorted(unknown)[0]} is none of {', '.join(INPUTS)}", file=sys.stderr)
        return 2
    started = time.monotonic()
    chosen = [cell for cell in cells() if not programs or cell.program in programs]
    results = Results(KEPT, code_digest(PROJECT))
    store, configs = prepared(Path(tempfile.mkdtemp(prefix="resume-matrix-")))
    for number, cell in enumerate(chosen, 1):
        if results.exact(cell.name, cell.moments):
            print(f"{number}/{len(chosen)} {cell.name}: exact already with this code", flush=True)
            continue
        _run_cell(store, cell, configs[cell.program], results, f"{number}/{len(chosen)}", started)
    print(table([(cell.columns, cell.moments, results.of(cell.name)) for cell in chosen], tuple(MOMENTS)))
    bad = [cell.name for cell in chosen if not results.exact(cell.name, cell.moments)]
    moments = sum(len(cell.moments) for cell in chosen)
    end = f"not exact: {len(bad)} of {len(chosen)} cells" if bad else f"all {moments} moments of {len(chosen)} cells exact"
    print(f"{end}; {time.monotonic() - started:.0f} s, and {results.seconds([cell.name for cell in chosen]):.0f} s over all parts")
    return int(bool(bad))


def _run_cell(store: Store, cell: Cell, config: Mapping[str, Any], results: Results, number: str, started: float) -> None:
    """Runs all moments of one cell; what came out is kept, whatever it is."""
    began, seen, error = time.monotonic(), [], ""
    try:
        for outcome in outcomes(store, cell, dict(config)):
            seen.append(outcome)
            print(line(number, time.monotonic() - started, cell.columns, asdict(outcome)), flush=True)
    except AssertionError as raised:
        error = str(raised)
        print(f"{number} {cell.name}: NO: {error}", flush=True)
    results.keep(cell.name, [asdict(outcome) for outcome in seen], error, time.monotonic() - began)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
