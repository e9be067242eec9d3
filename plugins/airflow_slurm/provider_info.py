"""What Airflow shows of this provider; the entry point ``apache_airflow_provider`` names it."""

from __future__ import annotations

from typing import Any

from airflow_slurm import __version__


def _text(label: str, description: str, *, secret: bool = False) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": ["string", "null"]}
    if secret:
        schema["format"] = "password"
    return {"label": label, "description": description, "schema": schema}


def _number(label: str, description: str, default: float) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["number", "null"], "exclusiveMinimum": 0, "default": default}}


def _switch(label: str, description: str, *, default: bool = False) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["boolean", "null"], "default": default}}


def _option(description: str, example: str) -> dict[str, Any]:
    return {"description": description, "version_added": __version__, "type": "string", "example": example, "default": ""}


_FIELDS = {
    "ssh_conn_id": _text(
        "SSH connection", "An existing SSH connection that holds host, user and keys; leave the rest of the login empty then."
    ),
    "private_key": _text("Private key", "In OpenSSH or PEM form.", secret=True),
    "private_key_passphrase": _text("Passphrase of the key", "If it has one.", secret=True),
    "key_file": _text("Key file", "Path of a private key here, instead of the key itself."),
    "host_key": _text("Host key", "The login node's public key, such as: ssh-ed25519 AAAA…"),
    "known_hosts": _text("known_hosts file", "Path of a file here that holds the host key, instead."),
    "root": _text("Remote root", "Folder below which jobs may write."),
    "cluster": _text("Cluster", "Name for --clusters, where one login node serves several."),
    "slurm_bin": _text("Folder of the Slurm commands", "If they are not on the PATH of a login."),
    "slurm_conf": _text("slurm.conf", "Its path there, if it is not the built-in one."),
    "poll_interval_s": _number("Seconds between two looks", "One squeue for all jobs each time.", 60),
    "command_timeout_s": _number("Seconds for one command", "Slurm's own clients give up after up to 49 s.", 60),
    "check_requests": _switch("Check requests", "Hold jobs against what the site offers before they are sent.", default=True),
    "site_max_age_s": _number("Seconds that the site's record holds", "Partitions, limits, QOS: asked for anew when it is older.", 3600),
    "preemptible_partition": _text("Partition of preemptible jobs", "For jobs that say they may be preempted and name none."),
    "preemptible_qos": _text("QOS of preemptible jobs", "For jobs that say they may be preempted and name none."),
    "preemptible_requeue": _switch("Slurm requeues preemptible jobs", "Else a preempted job is submitted again."),
    "pool": _text("Airflow pool", "The one that limits submissions to this cluster; Test says whether it exists."),
    "job_url": _text("Link to a job", "Address of a portal's page, with {job_id} and {cluster} to be filled in."),
    "metrics_url": _text("Link to a job's metrics", "Address of a dashboard, with {job_id}, {cluster} and {nodes} to be filled in."),
}


def get_provider_info() -> dict[str, Any]:
    """The provider's description, as Airflow 3 reads it."""
    return {
        "package-name": "airflow-slurm",
        "name": "Slurm",
        "description": "Batch jobs on Slurm clusters over SSH: none lost, none doubled, none guessed.",
        "versions": [__version__],
        "hooks": [{"integration-name": "Slurm", "python-modules": ["airflow_slurm.hook"]}],
        "operators": [{"integration-name": "Slurm", "python-modules": ["airflow_slurm.operators", "airflow_slurm.array_operator"]}],
        "sensors": [{"integration-name": "Slurm", "python-modules": ["airflow_slurm.sensors"]}],
        "triggers": [{"integration-name": "Slurm", "python-modules": ["airflow_slurm.triggers", "airflow_slurm.sensing"]}],
        "task-decorators": [{"name": "slurm", "class-name": "airflow_slurm.decorators.slurm_task"}],
        "integrations": [{"integration-name": "Slurm", "external-doc-url": "https://slurm.schedmd.com/", "tags": ["service"]}],
        "extra-links": ["airflow_slurm.links.SlurmJobLink", "airflow_slurm.links.SlurmOutputLink"],
        "plugins": [{"name": "slurm", "plugin-class": "airflow_slurm.plugin.SlurmPlugin"}],
        "config": {
            "slurm": {
                "description": "The receipt store of operators that name none, and of the tab *Slurm*.",
                "options": {
                    "receipts": _option("Dotted path of the store's class.", "airflow_slurm.file_receipts.FileReceipts"),
                    "receipts_config": _option("Its arguments as a JSON object.", '{"root": "/opt/airflow/slurm-receipts"}'),
                },
            }
        },
        "connection-types": [
            {
                "connection-type": "slurm",
                "hook-class-name": "airflow_slurm.hook.SlurmHook",
                "hook-name": "Slurm",
                "ui-field-behaviour": {
                    "hidden-fields": ["schema", "password"],
                    "relabeling": {"host": "Login node", "login": "User"},
                    "placeholders": {"host": "login.cluster.example", "port": "22"},
                },
                "conn-fields": _FIELDS,
            }
        ],
    }
