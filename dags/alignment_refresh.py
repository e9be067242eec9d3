"""The whole chain on a schedule: data → SFT → candidates → preferences → reward model → policy → evaluation → approval → release."""

import os

from airflow.sdk import DAG, Param

from include.flows import chain
from include.flows.scheduled import scheduled


def refresh(dag_id: str, recipe: str) -> DAG:
    """The chain, by default of `recipe`."""
    with DAG(
        dag_id,
        schedule=os.environ.get("ALIGN_REFRESH_SCHEDULE") or None,
        catchup=False,
        max_active_runs=4,
        tags=["alignment"],
        doc_md=__doc__,
        params={
            "recipe": Param(recipe, type="string", minLength=1, title="Recipe", description="A file in configs/recipes"),
            "method": Param(
                None, type=["null", "string"], enum=[None, "dpo", "ppo"], title="Method", description="Empty: as the recipe says"
            ),
            "auto": Param(False, type="boolean", title="Unattended", description="The verifier labels everything"),
            "ask_again": Param(False, type="boolean", title="Ask anew", description="Ask again where a person has said no"),
            "rerun_salt": Param("", type="string", title="Rerun salt", description="Anything here computes every stage from scratch"),
        },
    ) as dag:
        run = chain.resolve(whole_chain=True)
        base = chain.base(run)
        datasets = chain.data(run)
        sft = chain.sft(run, base, datasets)
        generated = chain.candidates(run, sft, datasets)
        pairs = chain.preferences(run, generated, datasets)
        reward = chain.reward_model(run, sft, pairs)
        policy = chain.policy(run, sft, pairs, reward, datasets)
        wanted, verdict = chain.evaluation(run, base, sft, policy, reward, datasets)
        released = chain.release(run, wanted, policy, verdict, datasets)
        released >> chain.outcome(run)
    return dag


for _dag_id, _recipe in scheduled("alignment_refresh"):
    globals()[_dag_id] = refresh(_dag_id, _recipe)
