"""Everything on one machine: a private Slurm, MLflow, the annotation service and Airflow, started as the calling user."""
