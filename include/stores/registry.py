"""MLflow as a view: runs, metrics, model versions, and aliases that say what the ledger says.

The ledger is the truth. Aliases are set only by `repair`, so a crash between ledger and alias, or an alias moved by hand,
is mended by calling it again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from include.domain.canonical import canonical_bytes, check_digest, digest, hex_of
from include.domain.spec import RunSpec
from include.stores.catalog.ledger import Ledger
from include.stores.errors import RegistryError
from include.stores.live_log import LiveLog, end_run, running_keys, show_figures
from include.stores.mlflow_runs import run_of
from include.stores.run_log import RunWriter, StageLog, Stopped, finished_run, upload
from include.stores.series import AttemptLog
from include.stores.tracking import MlflowRefused, Tracking, aliases_of, tags_of

__all__ = ["ALIASES", "AttemptLog", "Drift", "ModelEntry", "Papers", "Registry", "StageLog", "Stopped"]

ALIASES = ("candidate", "canary", "champion")
DEPLOYMENT_TAG, WEIGHTS_TAG, URI_TAG = "align.deployment", "align.weights", "align.weights_uri"
PAPERS_TAG, HEAD_TAG = "align.papers", "align.ledger_head"
DESCRIPTION_LENGTH = 4000


@dataclass(frozen=True)
class ModelEntry:
    """A model version to be. Card, manifest, config and gates become artifacts; the weights stay where they are.

    deployment: digest that names the version; weights, weights_uri: the artifact's digest and place.
    """

    deployment: str
    weights: str
    weights_uri: str
    run_id: str
    card: str
    manifest: Mapping[str, Any]
    config: Mapping[str, Any]
    gates: Mapping[str, Any]
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def papers(self) -> "Papers":
        return Papers(self.card, self.gates)


@dataclass(frozen=True)
class Papers:
    """What is written anew when something was judged or decided: the card and the gate report."""

    card: str
    gates: Mapping[str, Any]

    @property
    def files(self) -> dict[str, bytes]:
        return {"card.md": self.card.encode(), "gates.json": canonical_bytes(dict(self.gates))}

    @property
    def digest(self) -> str:
        return digest("papers", {"card": self.card, "gates": dict(self.gates)})


@dataclass(frozen=True)
class Drift:
    """An alias that did not say what the ledger says, and was put right. `problem`: why it could not be."""

    alias: str
    was: int | None
    now: int | None
    problem: str = ""


class Registry:
    """An MLflow server and one experiment of it.

    Args:
        tracking_uri: ``http(s)://…``.
        experiment: its name; made when it is not there.
        timeout_s, attempts: of each question; by default those of `tracking`.
    """

    def __init__(
        self, tracking_uri: str, experiment: str = "alignment", *, timeout_s: float | None = None, attempts: int | None = None
    ) -> None:
        self.tracking = Tracking(tracking_uri, timeout_s=timeout_s, attempts=attempts)
        self.experiment = experiment
        self._experiment_id: str | None = None
        self._made_client: Any = None

    @property
    def _client(self) -> Any:
        if self._made_client is None:
            from mlflow import MlflowClient

            self._made_client = MlflowClient(tracking_uri=self.tracking.uri, registry_uri=self.tracking.uri)
        return self._made_client

    def preflight(self) -> str:
        """Within seconds: the server answers, and the experiment is there or is made now. Gives its id.

        Raises:
            RegistryError: the server does not answer, or the experiment of this name is deleted.
        """
        found = self.tracking.experiment(self.experiment)
        if found is None:
            found = self._create_experiment()
        if found["lifecycle_stage"] == "deleted":
            raise RegistryError(
                f"MLflow experiment {self.experiment!r} (id {found['experiment_id']}) is deleted, and still owns its name: restore it "
                f"(`mlflow experiments restore --experiment-id {found['experiment_id']}`) or choose another name"
            )
        self._experiment_id = str(found["experiment_id"])
        return self._experiment_id

    def _create_experiment(self) -> dict[str, Any]:
        """Of two that make it at once, one is told that it exists; both then find it."""
        try:
            self.tracking.post("experiments/create", name=self.experiment)
        except MlflowRefused as error:
            if error.code != "RESOURCE_ALREADY_EXISTS":
                raise
        found = self.tracking.experiment(self.experiment)
        if found is None:
            raise RegistryError(f"MLflow experiment {self.experiment!r} was made and is not there: look at the server's log")
        return found

    @property
    def experiment_id(self) -> str:
        return self._experiment_id or self.preflight()

    def log_run(self, log: StageLog) -> str:
        """Shows a run that is committed or stopped, once, and gives MLflow's run id; a run that was told half is told to its end."""
        known = finished_run(self.tracking, self.experiment_id, log)
        return known or RunWriter(self._client, self.tracking, self.experiment_id).write(log)

    def live(self, spec: RunSpec, attempt: str) -> LiveLog:
        """An attempt's run, and its stage's, while it is under way."""
        return LiveLog(self.tracking, self.experiment_id, spec, attempt)

    def show(self, key: str, name: str, figures: Mapping[str, float], tags: Mapping[str, str]) -> str:
        """Figures that belong to no job, as a finished run of their own, once; its id."""
        return show_figures(self.tracking, self.experiment_id, (key, name), figures, tags)

    def running(self) -> list[str]:
        """The keys of stage runs that are shown as running."""
        return running_keys(self.tracking, self.experiment_id)

    def end_run(self, key: str, status: str) -> bool:
        """Ends a stage's run (FINISHED, FAILED or KILLED) that is shown as running; whether it was."""
        return end_run(self.tracking, run_of(self.tracking, self.experiment_id, key), status)

    def end_attempt(self, key: str, attempt: str, status: str) -> bool:
        """The same for the run of one attempt."""
        return self.end_run(f"{key}/{attempt}", status)

    def register(self, name: str, entry: ModelEntry) -> int:
        """Registers a deployment as a version of `name`; the same deployment again is the same version, with the papers of now."""
        check_digest(entry.deployment, "deployment")
        if self.tracking.model(name) is None:
            try:
                self.tracking.post("registered-models/create", name=name)
            except MlflowRefused as error:
                if error.code != "RESOURCE_ALREADY_EXISTS":
                    raise
        known = self._versions_of(name, entry.deployment)
        if not known:
            made = self._create_version(name, entry)
            known = self._versions_of(name, entry.deployment)
            if made != known[0]:  # another task registered the same deployment at the same moment: the lower number stays
                self._client.delete_model_version(name, str(made))
        else:
            self.renew(name, entry.deployment, entry.papers, entry.tags)
        return known[0]

    def _create_version(self, name: str, entry: ModelEntry) -> int:
        folder = f"model/{hex_of(entry.deployment)[:16]}"
        fixed = {"manifest.json": canonical_bytes(dict(entry.manifest)), "config.json": canonical_bytes(dict(entry.config))}
        upload(self._client, entry.run_id, folder, {**entry.papers.files, **fixed})
        tags = {DEPLOYMENT_TAG: entry.deployment, WEIGHTS_TAG: entry.weights, URI_TAG: entry.weights_uri, PAPERS_TAG: entry.papers.digest}
        tags |= _plain_tags(entry.tags)
        made = self._client.create_model_version(
            name, source=f"runs:/{entry.run_id}/{folder}", run_id=entry.run_id, tags=tags, description=entry.card[:DESCRIPTION_LENGTH]
        )
        return int(made.version)

    def renew(self, name: str, deployment: str, papers: Papers, tags: Mapping[str, str]) -> bool:
        """Brings a version's card, gates and tags (``align.…``) up to date; says whether anything differed.

        The papers go to the same place as those they replace; the description is the card's beginning. False also where the deployment
        has no version.
        """
        found = min((v for v in self.tracking.versions(name) if tags_of(v).get(DEPLOYMENT_TAG) == deployment), key=_number, default=None)
        if found is None:
            return False
        version, there = str(found["version"]), tags_of(found)
        new = {key: value for key, value in _plain_tags(tags).items() if there.get(key) != value}
        if there.get(PAPERS_TAG) != papers.digest:
            upload(self._client, str(found["run_id"]), f"model/{hex_of(deployment)[:16]}", papers.files)
            self.tracking.patch("model-versions/update", name=name, version=version, description=papers.card[:DESCRIPTION_LENGTH])
            new[PAPERS_TAG] = papers.digest  # last: a crash before it writes the same papers again
        for key, value in new.items():
            self.tracking.post("model-versions/set-tag", name=name, version=version, key=key, value=value)
        return bool(new)

    def heads(self, name: str) -> list[dict[str, Any]]:
        """Heads of the ledger ({"seq", "hash"}) that versions of `name` carry."""
        told = [tags_of(version).get(HEAD_TAG, "") for version in self.tracking.versions(name)] if self.tracking.model(name) else []
        return [{"seq": int(seq), "hash": hash_} for seq, _, hash_ in (head.partition(" ") for head in told) if hash_ and seq.isdigit()]

    def _versions_of(self, name: str, deployment: str) -> list[int]:
        found = [v for v in self.tracking.versions(name) if tags_of(v).get(DEPLOYMENT_TAG) == deployment]
        return sorted(int(v["version"]) for v in found)

    def version_of(self, name: str, deployment: str) -> int | None:
        """The version that a deployment is registered as, or None."""
        found = self._versions_of(name, deployment)
        return found[0] if found else None

    def aliases(self, name: str) -> dict[str, int]:
        """alias → version, our aliases only."""
        return {alias: version for alias, version in aliases_of(self.tracking.model(name)).items() if alias in ALIASES}

    def repair(self, ledger: Ledger, name: str) -> list[Drift]:
        """Makes the aliases of `name` say what the ledger says, and tells what was otherwise."""
        model = self.tracking.model(name)
        there = aliases_of(model)
        drift = [self._unset(name, alias, version) for alias, version in there.items() if alias not in ALIASES and alias.lower() in ALIASES]
        for alias, deployment in ledger.aliases(name).items():
            was = there.get(alias)
            if deployment is None:
                if was is not None:
                    drift.append(self._unset(name, alias, was))
                continue
            wanted = None if model is None else self.version_of(name, deployment)
            if wanted is None:
                if was is not None:
                    self._unset(name, alias, was)
                drift.append(Drift(alias, was, None, f"{deployment} has no version of {name} in MLflow: register it again"))
            elif wanted != was:
                self.tracking.post("registered-models/alias", name=name, alias=alias, version=str(wanted))
                drift.append(Drift(alias, was, wanted))
        return drift

    def _unset(self, name: str, alias: str, version: int) -> Drift:
        self._client.delete_registered_model_alias(name, alias)
        return Drift(alias, version, None)

    def delete_version(self, name: str, version: int) -> None:
        """Deletes a version that no alias names; MLflow itself would drop the alias without a word."""
        named = sorted(alias for alias, number in aliases_of(self.tracking.model(name)).items() if number == version)
        if named:
            raise RegistryError(f"{name} version {version} is {', '.join(named)}: it is not deleted while an alias names it")
        self._client.delete_model_version(name, str(version))


def _number(version: Mapping[str, Any]) -> int:
    return int(version["version"])


def _plain_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Tags under our prefix, cut to what MLflow keeps."""
    return {f"align.{key}": str(value)[:4900] for key, value in tags.items()}
