"""One run of a stage in a folder, with any body in place of its program."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from include.domain.canonical import digest
from include.domain.manifest import MANIFEST, build_manifest
from include.domain.spec import InputPlace, Placement, Report, RunSpec
from include.runtime.checkpoint import Snapshot
from include.runtime.job import Job
from include.runtime.program import run_program
from include.runtime.tokenizer import chat_template_digest, tokenizer_digest

SOME = digest("test", {"some": "thing"})
Body = Callable[[Job], None]


def _base(folder: Path) -> InputPlace:
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    manifest = build_manifest("base", folder)
    (folder / MANIFEST).write_text(json.dumps(manifest.to_json()))
    return InputPlace(str(folder), manifest.digest, manifest.digest)


class Bench:
    """One run of the stage sft in a folder, with any body."""

    def __init__(self, root: Path) -> None:
        self.resources: dict[str, Any] = {}
        self.root = root
        self.base = _base(root / "base")
        folder = Path(self.base.path)
        self.spec = RunSpec(
            stage="sft",
            program="include.training.sft",
            inputs={"base": self.base.digest},
            code_revision=SOME,
            config={"steps": 3},
            environment=SOME,
            seed=11,
            tokenizer=tokenizer_digest(folder),
            chat_template=chat_template_digest(folder),
        )

    def arguments(self, name: str = "1-5.0", spec: RunSpec | None = None, key: str | None = None, **settings: Any) -> list[str]:
        spec = spec or self.spec
        out = self.root / "run" / "attempts" / name
        out.mkdir(parents=True)
        (self.root / "run" / "spec.json").write_text(json.dumps(spec.to_json()))
        placement = Placement(key or spec.key, 1, str(self.root / "run"), {"base": self.base}, settings, self.resources)
        (out / "placement.json").write_text(json.dumps(placement.to_json()))
        return ["--spec", str(self.root / "run" / "spec.json"), "--placement", str(out / "placement.json"), "--out", str(out)]

    def run(self, body: Body, name: str = "1-5.0", **settings: Any) -> tuple[int, Report]:
        code = run_program("sft", body, self.arguments(name, **settings))
        return code, self.report(name)

    def report(self, name: str = "1-5.0") -> Report:
        return Report.from_json(json.loads((self.root / "run" / "attempts" / name / "report.json").read_text()))


def work(job: Job, until: int = 3, asked: int = 3) -> None:
    job.expect(asked)
    checkpoint = job.resume()
    for step in range(checkpoint.step if checkpoint else 0, until):
        job.record(step + 1, {"loss": 1.0 / (step + 1)}, tokens=10)
        if job.save_due(step + 1):
            job.save(step + 1, Snapshot({"model": {"w": torch.tensor([float(step)])}}))
        job.check_stop()


def whole(job: Job) -> None:
    work(job)
    with job.output("policy", "model") as folder:
        (folder / "config.json").write_text("{}")
    job.complete({"loss": 0.5}, {"note": "x"})
