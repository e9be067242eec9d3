"""Evaluation, gates, approval, canary and release of the newest policy."""

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Param

from include.flows import chain, phases

PARAMS = {
    "recipe": Param(
        None, type=["null", "string"], title="Recipe", description="By hand: whose newest input to take; empty takes the newest of all"
    ),
    "state": Param(None, type=["null", "object"], title="State", description="Set by this DAG itself when several inputs came at once"),
    "ask_again": Param(False, type="boolean", title="Ask anew", description="Ask again where a person has said no"),
}

with DAG("release_policy", schedule=[phases.POLICY], catchup=False, tags=["alignment"], doc_md=__doc__, params=PARAMS) as dag:
    state = phases.start(phases.POLICY)
    wanted, verdict = chain.evaluation(state["run"], state["base"], state["sft"], state["policy"], state["reward"], state["datasets"])
    released = chain.release(state["run"], wanted, state["policy"], verdict, state["datasets"])
    released >> chain.outcome(state["run"])
    TriggerDagRunOperator.partial(task_id="further_runs", trigger_dag_id="release_policy").expand(conf=phases.others())
