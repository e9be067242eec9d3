"""What the reconciler has to know of this project; and the reports of jobs that nobody waited for."""

from datetime import UTC, datetime, timedelta

from include.domain.errors import AlignmentError
from include.flows import services
from include.flows.live_run import settle_all
from include.flows.placing import stop_policy
from include.flows.stage_work import JOB_PREFIX, job_name
from include.settings.catalogue import cluster
from include.stores.catalog.database import stamp

LOOKED_FOR = timedelta(days=2)
"""How long after a job's end its report may still appear: a file system that was away, a reconciler that stood still."""


def reconcile_cluster() -> list[dict[str, str]]:
    """One pass over the cluster's jobs and the catalog's live submissions; says what it found and did."""
    from airflow_slurm.hook import SlurmHook
    from airflow_slurm.receipts import load_store
    from airflow_slurm.work.reconciler import reconcile

    where = cluster()
    receipts = load_store(services.RECEIPTS, services.receipts_config())
    found = reconcile(
        SlurmHook(where.slurm_conn_id),
        receipts,
        name_prefix=f"{JOB_PREFIX}-",
        name_of=job_name,
        policy=stop_policy(where),
        orphan_age_s=where.orphan_age_s,
    )
    for finding in found:
        print(f"{finding.kind}: {finding.key or '–'} job {finding.job_id or '–'}: {finding.detail}")
    if not found:
        print("Every job has an owner, and every owner its job.")
    words = [{"kind": str(f.kind), "key": str(f.key), "job_id": str(f.job_id), "detail": str(f.detail)} for f in found]
    settle_all()
    return words + keep_reports()


def keep_reports() -> list[dict[str, str]]:
    """Takes over the reports of jobs whose task was ended before it could: a run that was cancelled saved, and says how far it came.

    Nothing is committed. What cannot be read is named and looked for again with the next pass, as long as it is young.
    """
    runs, store = services.catalog().runs, services.store()
    found = []
    for key, n in runs.unreported(stamp(datetime.now(UTC) - LOOKED_FOR)):
        try:
            names = [str(attempt) for attempt in store.attempts(key) if attempt.n == n]
            reports = {name: report for name in names if (report := store.report(key, name)) is not None}
            for name, report in reports.items():
                runs.record_report(key, name, report.to_json())
                print(f"report: {key} attempt {name}: {report.outcome} ({report.stop_reason}) at step {report.last_step}")
        except (AlignmentError, OSError) as error:
            print(f"report: {key} submission {n}: {error}")
            found.append({"kind": "unreadable_report", "key": key, "job_id": "", "detail": str(error)})
    return found
