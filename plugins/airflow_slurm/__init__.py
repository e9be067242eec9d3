"""Slurm for Apache Airflow 3: submit, follow and end batch jobs over SSH without losing, doubling or guessing one."""

__version__ = "0.1.0"
