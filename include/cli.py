"""`align`: what is released, where it came from, what came from it, and the decisions only a person can take.

It reads the catalog alone (ALIGN_CATALOG_URL), so it answers also when MLflow, Airflow or the cluster are away; `estimate`
reads a recipe, `pin` a folder.
"""

import argparse
import getpass
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from include.domain.errors import AlignmentError

if TYPE_CHECKING:
    from include.domain.manifest import Manifest
    from include.stores.artifacts import ArtifactStore
    from include.stores.catalog import Catalog

REFS = "champion, champion:NAME (candidate and canary likewise), a digest, dataset:ID@3, deployment:DIGEST, label:ID or batch:ID"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; 0 done, 1 refused with the reason on stderr, 2 wrong usage."""
    options = _parser().parse_args(argv)
    try:
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except AlignmentError as error:
        print(f"align: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="align", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    lineage = _command(commands, "lineage", _lineage, "where something came from", ("ref", REFS), json_too=True)
    lineage.add_argument("--all", action="store_true", help="each writing of the same content on a line of its own")
    _command(commands, "impact", _impact, "everything that came from something", ("ref", REFS), json_too=True)
    _command(
        commands, "gates", _gates, "gate reports of a DAG run, of a deployment or of a champion", ("ref", "a DAG run's id, or " + REFS)
    )
    _command(
        commands, "ledger", _ledger, "checks the ledger's chain and shows the history of a name", ("name", "registered name"), optional=True
    )
    _command(commands, "runs", _runs, "stage runs by key, newest first", ("stage", "one stage only"), optional=True)
    resolve = _command(commands, "resolve", _resolve, "says what became of a job whose end is unknown", ("key", "stage key, sha256:…"))
    resolve.add_argument("how", choices=("lost", "ended"), help="lost: it is gone; ended: it was seen to end")
    resolve.add_argument("--why", required=True, help="stands in the ledger")
    resolve.add_argument("--who", default=None, help="who decides; by default the user of this shell")
    _estimate_command(commands)
    _command(commands, "pin", _pin, "prints what pins the files of a model's folder in a recipe", ("folder", "a Hugging Face folder"))
    pull = _command(commands, "pull", _pull, "fetches and verifies the weights of an alias or a deployment, or any artifact", ("ref", REFS))
    pull.add_argument("directory", type=Path, help="a new folder")
    return parser


def _command(
    commands: Any, name: str, run: Any, text: str, argument: tuple[str, str], *, optional: bool = False, json_too: bool = False
) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    made.add_argument(argument[0], help=argument[1], nargs="?" if optional else None)
    if json_too:
        made.add_argument("--json", action="store_true", help="as JSON")
    made.set_defaults(run=run)
    return made


def _estimate_command(commands: Any) -> None:
    cost = _command(
        commands, "estimate", _estimate, "what a recipe will cost, before anything is paid", ("recipe", "name, or name@version")
    )
    cost.add_argument("--method", choices=("dpo", "ppo"), help="as the recipe says, unless given")
    cost.add_argument("--parameters", type=float, help="of the base; by default from its shape or its file's name")
    cost.add_argument("--cluster", help="a file of configs/clusters: each stage on what its job asks for there; else the figures below")
    cost.add_argument("--devices", type=int, default=8)
    cost.add_argument("--tflops", type=float, default=989.0, help="peak of one device in the training precision (an H100 by default)")
    cost.add_argument("--bandwidth", type=float, default=3350.0, help="of its memory, GB/s")
    cost.add_argument("--memory", type=float, default=80.0, help="of one device, GB")
    cost.add_argument("--utilisation", type=float, default=0.4, help="share of the peak that training reaches")


def _estimate(options: argparse.Namespace) -> int:
    from include.settings.catalogue import cluster, recipe
    from include.stages.choices import rendered
    from include.stages.hardware import Hardware, hardware_of, shape_of

    found = recipe(options.recipe)
    if options.parameters is not None and not options.parameters > 0:
        raise AlignmentError(f"--parameters {options.parameters:g} must be above 0")
    shape = shape_of(found, options.parameters)
    plain = Hardware(options.devices, options.tflops, options.bandwidth, options.memory, options.utilisation)
    if options.cluster is None:
        print(rendered(found, shape, lambda settings: plain, options.method))
        return 0
    where = cluster(options.cluster)
    if where.device is None:
        raise AlignmentError(f"cluster {where.name} describes no device: add `device` to configs/clusters/{options.cluster}.yaml")
    print(rendered(found, shape, lambda settings: hardware_of(where, settings.job) or plain, options.method))
    return 0


def _pin(options: argparse.Namespace) -> int:
    from include.domain.canonical import sha256_file
    from include.settings.recipes import is_model_file

    folder = Path(options.folder)
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and is_model_file(path.name)) if folder.is_dir() else []
    if not any(name.endswith(".safetensors") for name in names):
        raise AlignmentError(f"{folder} holds no safetensors; other weights are not read")
    print("  files:")
    for name in names:
        print(f'    {name}: "{sha256_file(folder / name)}"')
    return 0


def _catalog() -> "Catalog":
    from include.stores.catalog import Catalog

    url = os.environ.get("ALIGN_CATALOG_URL")
    if not url:
        raise AlignmentError("ALIGN_CATALOG_URL is not set: name the catalog, or start the local stack (make demo)")
    return Catalog.open(url)


def full_ref(catalog: "Catalog", ref: str) -> str:
    """`ref` with a bare alias, such as ``champion``, completed where only one name has one."""
    from include.stores.catalog.ledger import ALIASES

    if ref not in ALIASES:
        return ref
    names = [name for name in catalog.ledger.names() if catalog.ledger.aliases(name)[ref]]
    if len(names) != 1:
        raise AlignmentError(f"{ref} of which name? {', '.join(names) or 'no name has one yet'}")
    return f"{ref}:{names[0]}"


def _lineage(options: argparse.Namespace) -> int:
    from include.stores.catalog.render import render_node

    catalog = _catalog()
    node = catalog.lineage.trace(full_ref(catalog, options.ref))
    print(json.dumps(node.to_json(), indent=1, ensure_ascii=False) if options.json else render_node(node, every_writing=options.all))
    return 0


def _impact(options: argparse.Namespace) -> int:
    from include.stores.catalog.render import render_impact

    catalog = _catalog()
    found = catalog.lineage.impact(full_ref(catalog, options.ref))
    print(json.dumps(found.to_json(), indent=1, ensure_ascii=False) if options.json else render_impact(found))
    return 0


def _gates(options: argparse.Namespace) -> int:
    from include.gates.render import table
    from include.gates.results import report_from

    catalog = _catalog()
    deployment = _deployment_of(catalog, options.ref)
    reports = catalog.measurements.reports_of(deployment)
    if not reports:
        raise AlignmentError(f"no gate report of {deployment} is in the catalog")
    for report in reports:
        print(f"{report.purpose} {report.digest} ({report.created_at}): {report.verdict}")
        print(table(report_from(report.body)), end="\n\n")
    return 0


def _deployment_of(catalog: "Catalog", ref: str) -> str:
    """The deployment that a run asked to release, or that `ref` names."""
    dossier = catalog.releases.asked_in(ref)
    if dossier is not None:
        return str(catalog.releases.dossier(dossier).deployment)
    return str(catalog.lineage.resolve(full_ref(catalog, ref)))


def _ledger(options: argparse.Namespace) -> int:
    catalog = _catalog()
    rows, head = catalog.ledger.verify(), catalog.ledger.head()
    print(f"{rows} rows, each fits the one before; head {head['hash']}")
    for entry in catalog.ledger.entries(name=options.name) if options.name else catalog.ledger.entries():
        print(f"{entry.seq:>5}  {entry.at}  {entry.kind:<16} {entry.name or '–'}  {entry.actor}  {_short(entry.payload)}")
    return 0


def _short(payload: Any) -> str:
    wanted = {k: v for k, v in payload.items() if k in ("deployment", "person", "comment", "account", "why", "reason", "ref")}
    return "  ".join(f"{k}={str(v)[:40]}" for k, v in wanted.items())


def _runs(options: argparse.Namespace) -> int:
    for run in _catalog().runs.newest(options.stage):
        print(f"{run.created_at}  {run.stage:<13} {run.key}  {run.committed_attempt or 'not committed'}")
    return 0


def _resolve(options: argparse.Namespace) -> int:
    from include.stores.catalog.receipts import CatalogReceipts

    _catalog()
    who = options.who or getpass.getuser()
    done = CatalogReceipts(os.environ["ALIGN_CATALOG_URL"]).resolve(options.key, options.how, who, options.why)
    print(f"submission {done.n} of {options.key} is {options.how}, says {who}; clear the task to go on")
    return 0


def _weights_of(catalog: "Catalog", digest: str) -> str:
    """The weights of a deployment; any other artifact (a member of a reward ensemble, an adapter) is what it is."""
    from include.stores.errors import NotFound

    try:
        return str(catalog.releases.deployment(digest)["weights"])
    except NotFound:
        return digest


def _pull(options: argparse.Namespace) -> int:
    import fsspec

    from include.stores.artifacts import ArtifactStore

    catalog = _catalog()
    weights = _weights_of(catalog, catalog.lineage.resolve(full_ref(catalog, options.ref)))
    root = os.environ.get("ALIGN_STORE_ROOT", "")
    if not Path(root).is_dir():
        raise AlignmentError(f"ALIGN_STORE_ROOT ({root or 'not set'}) is not a folder here: pull where the store is mounted")
    where = next((place for place in catalog.artifacts.locations(weights)), None)
    if where is None:
        raise AlignmentError(f"no place of {weights} is on record")
    store = ArtifactStore(fsspec.filesystem("file"), root, uri=where.store)
    manifest = _manifest_at(store, where.path, weights)
    store.fetch_folder(where.path, options.directory, manifest)
    print(f"{options.directory}: {len(manifest.files)} files, {manifest.size_bytes / 1e6:.1f} MB, {manifest.digest} verified")
    return 0


def _manifest_at(store: "ArtifactStore", path: str, digest: str) -> "Manifest":
    """Outputs of a run have one manifest together, above their folders; a dataset has its own."""
    from include.domain.errors import IntegrityError
    from include.domain.manifest import Manifest

    if not path.startswith("runs/"):
        found = [store.read_manifest(path)]
    else:
        found = [Manifest.from_json(item) for item in store.read_json(f"{path.rsplit('/', 1)[0]}/manifest.json")["artifacts"].values()]
    for manifest in found:
        if manifest.digest == digest:
            return manifest
    raise IntegrityError(f"{store.full(path)} holds {', '.join(m.digest for m in found)}; {digest} was registered there")


if __name__ == "__main__":
    raise SystemExit(main())
