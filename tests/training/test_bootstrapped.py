"""The whole way of a job: bootstrap, the tar of the program's own import closure, the program, its report."""

import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

from include.domain.canonical import sha256_file
from include.domain.closure import import_closure
from include.domain.environment import this_environment
from include.domain.layout import RunDir
from include.domain.spec import InputPlace, Placement, Report
from tests.training.harness import PROJECT, TINY, Store, cluster_python, corpus


def _tar(module: str, path: Path) -> None:
    """Nothing but what the program imports, found without running it."""
    with tarfile.open(path, "w") as tar:
        for file in import_closure(PROJECT, module).values():
            data = file.read_bytes()
            info = tarfile.TarInfo(file.relative_to(PROJECT).as_posix())
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def test_a_program_runs_from_its_own_closure_alone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    place: InputPlace = store.raw("source", "corpus.jsonl", corpus())
    config = {"kind": "tiny", "file": "corpus.jsonl", "dtype": "float32", "tiny": {**TINY, "steps": 5}}
    spec = store.spec("base_import", {"source": "source"}, config)
    run = tmp_path / RunDir(spec.key).root
    (run / "submissions" / "1").mkdir(parents=True)
    (run / "spec.json").write_text(json.dumps(spec.to_json()))
    placement = Placement(spec.key, 1, str(run), {"source": place}, {"threads": 1}, {})
    (run / "submissions" / "1" / "placement.json").write_text(json.dumps(placement.to_json()))
    (tmp_path / "code").mkdir()
    tar = tmp_path / "code" / "x.tar"
    _tar(spec.program, tar)
    lock = tmp_path / "lock.txt"
    lock.write_text("pinned\n")
    command = [
        cluster_python(),
        str(PROJECT / "include" / "runtime" / "bootstrap.py"),
        "--root",
        str(tmp_path),
        "--run",
        RunDir(spec.key).root,
    ]
    command += ["--n", "1", "--program", spec.program, "--code", "code/x.tar", "--code-sha256", sha256_file(tar)]
    command += ["--environment", this_environment(sha256_file(lock)).digest, "--lock-file", str(lock)]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(command, env={**environment, "SLURM_JOB_ID": "31"}, capture_output=True, text=True, timeout=110, check=False)
    attempt = run / "attempts" / "1-31.0"
    assert done.returncode == 0, (attempt / "stderr").read_text()
    report = Report.from_json(json.loads((attempt / "report.json").read_text()))
    assert (report.outcome, report.last_step, report.attempt) == ("complete", 5, "1-31.0")
    assert not (attempt / "code" / "include" / "training" / "sft.py").exists()
    assert json.loads((attempt / "environment.json").read_text())["variables"]["SLURM_JOB_ID"] == "31"
