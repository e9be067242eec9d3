"""Before anything is paid: what a recipe will cost, and what pins the files of its base."""

import argparse
from pathlib import Path
from typing import Any

from include.cli.command import command
from include.domain.errors import AlignmentError


def add_to(commands: Any) -> None:
    _estimate_command(commands)
    command(commands, "pin", _pin, "prints what pins the files of a model's folder in a recipe", ("folder", "a Hugging Face folder"))


def _estimate_command(commands: Any) -> None:
    cost = command(commands, "estimate", _estimate, "what a recipe will cost, before anything is paid", ("recipe", "name, or name@version"))
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
