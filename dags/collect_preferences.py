"""Candidates of the newest SFT policy, comparisons, and the preference datasets."""

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Param

from include.flows import chain, phases

PARAMS = {
    "recipe": Param(
        None, type=["null", "string"], title="Recipe", description="By hand: whose newest input to take; empty takes the newest of all"
    ),
    "state": Param(None, type=["null", "object"], title="State", description="Set by this DAG itself when several inputs came at once"),
    "ask_again": Param(False, type="boolean", title="Ask anew", description="Go on although no label is new"),
}

with DAG("collect_preferences", schedule=[phases.SFT], catchup=False, tags=["alignment"], doc_md=__doc__, params=PARAMS) as dag:
    state = phases.start(phases.SFT)
    generated = chain.candidates(state["run"], state["sft"], state["datasets"])
    pairs = chain.preferences(state["run"], generated, state["datasets"], new_only=True)
    phases.emit(phases.PREFERENCES, state, pairs=pairs)
    TriggerDagRunOperator.partial(task_id="further_runs", trigger_dag_id="collect_preferences").expand(conf=phases.others())
