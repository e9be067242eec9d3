"""Names under which jobs can be found again when nothing but the key of the work is known."""

from __future__ import annotations

import hashlib

from airflow_slurm.spec import check_job_name


def job_name_for(key: str, n: int, prefix: str = "job") -> str:
    """``<prefix>-<16 hex digits of sha256(key)>-<n>``: the default name of submission ``n`` of ``key``."""
    return check_job_name(f"{prefix}-{hashlib.sha256(key.encode()).hexdigest()[:16]}-{n}")
