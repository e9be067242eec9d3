"""The reward model of the newest preferences, and its gate."""

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Param

from include.flows import chain, phases

PARAMS = {
    "recipe": Param(
        None, type=["null", "string"], title="Recipe", description="By hand: whose newest input to take; empty takes the newest of all"
    ),
    "state": Param(None, type=["null", "object"], title="State", description="Set by this DAG itself when several inputs came at once"),
}

with DAG("train_reward_model", schedule=[phases.PREFERENCES], catchup=False, tags=["alignment"], doc_md=__doc__, params=PARAMS) as dag:
    state = phases.start(phases.PREFERENCES)
    reward = chain.reward_model(state["run"], state["sft"], state["pairs"])
    phases.emit(phases.REWARD_MODEL, state, reward=reward)
    TriggerDagRunOperator.partial(task_id="further_runs", trigger_dag_id="train_reward_model").expand(conf=phases.others())
