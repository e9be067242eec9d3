"""`python -m local`: the local stack and its demonstration."""

from __future__ import annotations

import argparse
import os
import sys

from local import demo, fetch, lock, secret_files
from local.environment import as_shell
from local.layout import Layout
from local.process import LocalError
from local.python_environments import make_megatron_next_environment, make_peers_environment
from local.stack import Stack


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m local", description=__doc__)
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    install = commands.add_parser("install", help="Debian packages and the two Python environments")
    install.add_argument("--dev", action="store_true", help="also what tests and checks need")
    commands.add_parser("peers", help="other trainers, to compare with, in an environment of their own")
    commands.add_parser("megatron-next", help="the next Python and Megatron-core with their tests, in an environment of their own")
    commands.add_parser("fetch", help="the quick start's model and data, as packages")
    commands.add_parser("up", help="start Slurm, MLflow, the annotation service and Airflow")
    commands.add_parser("down", help="stop what `up` started, and nothing else")
    commands.add_parser("status", help="what runs, and where")
    commands.add_parser("env", help='lines for eval "$(python -m local env)"')
    lock_command = commands.add_parser("lock", help="resolve requirements/*.in to exact versions")
    lock_command.add_argument("--upgrade", action="store_true", help="newest versions that the .in files allow")
    secret = commands.add_parser("secret", help="show the password of an Airflow user, or the token of an annotation account")
    secret.add_argument("name", help="requester, approver, demo-approver, viewer, admin; annotator")
    clean = commands.add_parser("clean", help="stop, then remove runs, databases and passwords")
    clean.add_argument("--all", action="store_true", help="the environments and downloads too")
    run = commands.add_parser("demo", help="the whole chain, from nothing to an approved model")
    run.add_argument("--recipe", default="quickstart")
    run.add_argument("--method", choices=("dpo", "ppo"), help="as the recipe says, unless given")
    run.add_argument("--auto", action="store_true", help="nobody is asked: labels by the verifier, approval by demo-approver")
    return made


def run(arguments: argparse.Namespace) -> int:
    layout = Layout.find()
    stack = Stack(layout)
    match arguments.command:
        case "install":
            stack.install(development=arguments.dev)
        case "peers":
            make_peers_environment(layout)
        case "megatron-next":
            make_megatron_next_environment(layout)
        case "fetch":
            fetch.fetch(layout)
        case "up":
            stack.up()
        case "down":
            stack.down()
        case "status":
            return 0 if stack.status() else 1
        case "env":
            print(as_shell(stack.environment()))
        case "secret":
            print(secret_files.secret(layout, arguments.name))
        case "lock":
            lock.lock(layout, upgrade=arguments.upgrade)
        case "clean":
            stack.clean(everything=arguments.all)
        case "demo":
            return demo.run(stack, demo.Wish(arguments.recipe, arguments.method, arguments.auto))
    return 0


def main() -> int:
    try:
        return run(parser().parse_args())
    except LocalError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("\nStopped watching. What was started goes on: `make status` shows it, `make stop` ends it.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
