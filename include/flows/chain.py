"""The chain as task groups: the same pieces make `alignment_refresh` and the DAG of each phase.

A group takes what earlier ones returned (XCom references) and returns its own. No task here emits an asset: inside `alignment_refresh`
every phase would run twice. The DAG of a phase ends with `phases.emit`.
"""

from typing import Any

from airflow.sdk import get_current_context, task, task_group
from airflow.sdk.exceptions import AirflowFailException

from include.flows.approval import ReleaseApproval
from include.flows.array_stage_operator import ArrayStageOperator
from include.flows.judge_operator import JudgeOperator
from include.flows.label_sensor import LabelSensor
from include.flows.panel_sensor import PanelSensor
from include.flows.stage_operator import StageOperator

EXPORT_POKE_S = 60
"""How often a bucket is asked for an export that has not arrived."""


def actor() -> str:
    """Who acts, for the ledger and for lineage: this very try of this task."""
    ti = get_current_context()["ti"]
    return f"dag:{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.try_number}"


@task(multiple_outputs=True, retries=1)
def resolve(whole_chain: bool = False, **context: Any) -> dict[str, Any]:
    """Pins what this run is: recipe, method, who asked. Services are tried first, so that nothing is computed in vain."""
    from include.flows.resolve_run import resolve_run

    dag_run = context["dag_run"]
    asked_by = getattr(dag_run, "triggering_user_name", None)
    return resolve_run(dict(context["params"]), dag_run.run_id, dag_run.dag_id, asked_by, whole_chain=whole_chain)


@task(retries=2)
def bring_source(run: Any) -> dict[str, Any]:
    """Brings the base's raw file to the store, by its sha256."""
    from include.flows.data_tasks import bring_source as bring

    return bring(run)


def base(run: Any) -> Any:
    """Base import: a raw file becomes a plain model folder in the store."""

    @task_group(group_id="base")
    def group(run: Any) -> Any:
        return StageOperator(task_id="import_base", stage="base_import", run=run, given={"source": bring_source(run)}).output

    return group(run)


def data(run: Any) -> Any:
    """Sources become validated, versioned datasets; a failed validation stops here."""
    from airflow.providers.amazon.aws.sensors.s3 import S3KeySensor  # brings boto3: only for DAGs that have this group

    @task_group(group_id="data")
    def group(run: Any) -> Any:
        @task(retries=2)
        def exports(run: Any) -> list[dict[str, Any]]:
            """The recipe's sources that arrive in a bucket (none, mostly)."""
            from include.flows.data_tasks import awaited_exports

            return awaited_exports(run)

        @task(retries=0, trigger_rule="none_failed")
        def build_datasets(run: Any) -> dict[str, Any]:
            from include.flows.data_tasks import build
            from include.flows.gates_fit import require_gates_fit
            from include.settings.catalogue import recipe

            built = build(run, actor())
            require_gates_fit(recipe(run["recipe"]), built)  # before anything is trained
            return built

        waiting = S3KeySensor.partial(task_id="wait_for_exports", deferrable=True, poke_interval=EXPORT_POKE_S, retries=2)
        waited = waiting.expand_kwargs(exports(run))
        built = build_datasets(run)
        waited >> built
        return built

    return group(run)


def sft(run: Any, base_result: Any, datasets: Any) -> Any:
    """Supervised fine-tuning on the demonstrations."""

    @task_group(group_id="sft")
    def group(run: Any, base_result: Any, datasets: Any) -> Any:
        given = {"base": base_result, "datasets": datasets}
        return StageOperator(task_id="train", stage="sft", run=run, given=given).output

    return group(run, base_result, datasets)


def candidates(run: Any, sft_result: Any, datasets: Any) -> Any:
    """The SFT policy answers prompts, two answers each."""

    @task_group(group_id="candidates")
    def group(run: Any, sft_result: Any, datasets: Any) -> Any:
        return ArrayStageOperator(task_id="generate", stage="generate", run=run, given={"sft": sft_result, "datasets": datasets}).output

    return group(run, sft_result, datasets)


def preferences(run: Any, generated: Any, datasets: Any, *, new_only: bool = False) -> Any:
    """Comparisons by people and the verifier, a frozen snapshot, and the preference datasets made from it.

    `new_only`: a snapshot that an earlier run has already seen ends as *no new input*; otherwise it is used again.
    """

    @task_group(group_id="preferences")
    def group(run: Any, generated: Any, datasets: Any) -> Any:
        @task(retries=2)
        def open_batch(run: Any, generated: Any, datasets: Any) -> dict[str, Any]:
            from include.flows import preference_tasks

            return preference_tasks.open_batch(run, generated, datasets)

        @task(retries=2)
        def verify(run: Any, batch: Any, datasets: Any) -> dict[str, Any]:
            from include.flows import preference_tasks

            return preference_tasks.verify_batch(run, batch, datasets)

        @task(retries=1)
        def build_pairs(run: Any, snapshot: Any, generated: Any, datasets: Any) -> dict[str, Any]:
            from include.flows import pair_tasks

            return pair_tasks.pairs_from(run, snapshot, generated, datasets, actor())

        batch = open_batch(run, generated, datasets)
        waited = LabelSensor(task_id="wait_for_labels", run=run, batch=batch, new_only=new_only)
        verify(run, batch, datasets) >> waited
        return build_pairs(run, waited.output, generated, datasets)

    return group(run, generated, datasets)


def reward_model(run: Any, sft_result: Any, pairs: Any) -> Any:
    """The reward model, and its own gate before anything uses it."""

    @task_group(group_id="reward_model")
    def group(run: Any, sft_result: Any, pairs: Any) -> Any:
        @task(retries=0)
        def gate(run: Any, result: Any) -> dict[str, Any]:
            from include.flows.evaluation_tasks import reward_gate
            from include.flows.skipping import reason_told

            with reason_told():
                return reward_gate(run, result)

        trained = ArrayStageOperator(task_id="train", stage="reward_model", run=run, given={"sft": sft_result, "pairs": pairs})
        return gate(run, trained.output)

    return group(run, sft_result, pairs)


def policy(run: Any, sft_result: Any, pairs: Any, reward: Any, datasets: Any) -> Any:
    """PPO or DPO, as the run says."""

    @task_group(group_id="policy")
    def group(run: Any, sft_result: Any, pairs: Any, reward: Any, datasets: Any) -> Any:
        given = {"sft": sft_result, "pairs": pairs, "reward": reward, "datasets": datasets}
        return StageOperator(task_id="optimise", stage="policy", run=run, given=given).output

    return group(run, sft_result, pairs, reward, datasets)


def evaluation(run: Any, base_result: Any, sft_result: Any, policy_result: Any, reward: Any, datasets: Any) -> tuple[Any, Any]:
    """Measures the candidate beside base, SFT model, champion and anchor, asks people and a model judge where a gate does, and judges it. Returns (what was measured, the verdict)."""

    @task_group(group_id="evaluation")
    def group(run: Any, base_result: Any, sft_result: Any, policy_result: Any, reward: Any, datasets: Any) -> Any:
        @task(retries=1)
        def compare_with(run: Any, base_result: Any, sft_result: Any, policy_result: Any, reward: Any, datasets: Any) -> dict[str, Any]:
            from include.flows.evaluation_tasks import wanted
            from include.flows.skipping import skip_unless_new

            return skip_unless_new(wanted(run, base_result, sft_result, policy_result, reward, datasets))

        @task(retries=0)
        def gates(run: Any, wanted: Any, measured: Any, asked: Any, judged: Any) -> dict[str, Any]:
            from include.flows.evaluation_tasks import Asked, judge_candidate
            from include.flows.skipping import reason_told

            with reason_told():
                return judge_candidate(run, wanted, measured, Asked(asked, judged, actor()))

        chosen = compare_with(run, base_result, sft_result, policy_result, reward, datasets)
        measured = ArrayStageOperator(task_id="measure", stage="evaluate", run=run, given={"wanted": chosen})
        asked = PanelSensor(task_id="ask_people", run=run, wanted=chosen, measured=measured.output)
        judged = JudgeOperator(task_id="ask_judge", run=run, given={"wanted": chosen, "measured": measured.output})
        return chosen, gates(run, chosen, measured.output, asked.output, judged.output)

    return group(run, base_result, sft_result, policy_result, reward, datasets)  # type: ignore[return-value]


def release(run: Any, wanted: Any, policy_result: Any, verdict: Any, datasets: Any) -> Any:
    """Registry, a person's approval, a shadow run, and the release: ledger first, aliases after."""

    @task_group(group_id="release")
    def group(run: Any, wanted: Any, policy_result: Any, verdict: Any, datasets: Any) -> Any:
        @task(multiple_outputs=True, retries=2)
        def dossier(run: Any, wanted: Any, policy_result: Any, verdict: Any, datasets: Any) -> dict[str, Any]:
            from include.flows.release_tasks import dossier as make
            from include.flows.skipping import skip_if_rejected

            return skip_if_rejected(make(run, wanted, policy_result, verdict, datasets, actor()))

        @task(retries=2)
        def seats(filed: Any) -> list[int]:
            """One approval task for each that the recipe asks for."""
            return list(filed["seats"])

        @task(retries=1)
        def start_canary(filed: Any) -> dict[str, Any]:
            from include.flows.release_tasks import start_canary as start

            return start(filed, actor())

        @task(retries=2)
        def promote(run: Any, wanted: Any, verdict: Any, datasets: Any, filed: Any, observed: Any) -> dict[str, Any]:
            from include.flows.release_tasks import promote as do
            from include.flows.skipping import reason_told

            with reason_told():
                return do(run, wanted, verdict, datasets, filed, observed, actor())

        filed = dossier(run, wanted, policy_result, verdict, datasets)
        # One seat after the other: who has approved is not among those whom the next one asks.
        approved = ReleaseApproval.partial(task_id="approve", dossier=filed, max_active_tis_per_dagrun=1).expand(seat=seats(filed))
        canary = start_canary(filed)
        approved >> canary
        shadow = StageOperator(task_id="shadow_run", stage="shadow", run=run, given={"wanted": canary})
        return promote(run, wanted, verdict, datasets, filed, shadow.output)

    return group(run, wanted, policy_result, verdict, datasets)


@task(trigger_rule="all_done", retries=0)
def outcome(run: Any, **context: Any) -> str:
    """How the run ended, in the finite list of words. What is no release and no early end stays red, with the words as result all the same."""
    from include.flows.outcome import outcome_of

    ti, dag_run = context["ti"], context["dag_run"]
    states = ti.get_task_states(dag_id=dag_run.dag_id, run_ids=[dag_run.run_id]).get(dag_run.run_id, {})
    said, red = outcome_of(ti.xcom_pull, {name: None if state is None else str(state) for name, state in states.items()}, dag_run.run_id)
    print(f"{run['recipe']} ({run['method']}): {said}")
    if red:
        ti.xcom_push(key="return_value", value=said)
        raise AirflowFailException(said)
    return said
