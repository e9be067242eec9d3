"""Base and data of a recipe: import, validation, versions. Emits the datasets, from which every later phase starts."""

from airflow.sdk import DAG, Param

from include.flows import chain, phases

PARAMS = {
    "recipe": Param("quickstart", type="string", minLength=1, title="Recipe", description="A file in configs/recipes"),
    "method": Param(None, type=["null", "string"], enum=[None, "dpo", "ppo"], title="Method", description="Empty: as the recipe says"),
    "auto": Param(False, type="boolean", title="Unattended", description="The verifier labels everything"),
}

with DAG("build_dataset", schedule=None, catchup=False, tags=["alignment"], doc_md=__doc__, params=PARAMS) as dag:
    run = chain.resolve()
    base = chain.base(run)
    datasets = chain.data(run)
    phases.emit(phases.DATASETS, {"run": run, "base": base, "datasets": datasets})
