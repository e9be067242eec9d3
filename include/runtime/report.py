"""report.json: the last thing a program writes. No report means not finished, whatever Slurm says."""

import sys
from pathlib import Path

from include.domain.spec import Report
from include.runtime import job_log
from include.runtime.files import json_bytes, replace_durable

REPORT = "report.json"


def write_report(folder: Path, report: Report) -> None:
    replace_durable(folder / REPORT, json_bytes(report.to_json()))
    words = f"report: {report.outcome} ({report.stop_reason}), steps {report.first_step} to {report.last_step}"
    print(words, file=sys.stderr, flush=True)
    job_log.say(f"{words}; {report.message}" if report.message else words)
