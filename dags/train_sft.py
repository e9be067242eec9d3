"""Supervised fine-tuning on the newest datasets."""

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Param

from include.flows import chain, phases

PARAMS = {
    "recipe": Param(
        None, type=["null", "string"], title="Recipe", description="By hand: whose newest input to take; empty takes the newest of all"
    ),
    "state": Param(None, type=["null", "object"], title="State", description="Set by this DAG itself when several inputs came at once"),
}

with DAG("train_sft", schedule=[phases.DATASETS], catchup=False, tags=["alignment"], doc_md=__doc__, params=PARAMS) as dag:
    state = phases.start(phases.DATASETS)
    sft = chain.sft(state["run"], state["base"], state["datasets"])
    phases.emit(phases.SFT, state, sft=sft)
    TriggerDagRunOperator.partial(task_id="further_runs", trigger_dag_id="train_sft").expand(conf=phases.others())
