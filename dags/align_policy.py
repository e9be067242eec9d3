"""PPO or DPO, from the newest reward model and preferences."""

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Param

from include.flows import chain, phases

PARAMS = {
    "recipe": Param(
        None, type=["null", "string"], title="Recipe", description="By hand: whose newest input to take; empty takes the newest of all"
    ),
    "state": Param(None, type=["null", "object"], title="State", description="Set by this DAG itself when several inputs came at once"),
    "method": Param(None, type=["null", "string"], enum=[None, "dpo", "ppo"], title="Method", description="Empty: as the run before says"),
}

with DAG("align_policy", schedule=[phases.REWARD_MODEL], catchup=False, tags=["alignment"], doc_md=__doc__, params=PARAMS) as dag:
    state = phases.start(phases.REWARD_MODEL)
    policy = chain.policy(state["run"], state["sft"], state["pairs"], state["reward"], state["datasets"])
    phases.emit(phases.POLICY, state, policy=policy)
    TriggerDagRunOperator.partial(task_id="further_runs", trigger_dag_id="align_policy").expand(conf=phases.others())
