"""`python -m include.annotation`: serve, or add an account."""

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

import uvicorn

from include.annotation import config as configuration
from include.annotation.accounts import ROLES, Account, NewAccount, add_account, find_account, read_accounts, write_private
from include.annotation.app import create_app
from include.annotation.errors import ConfigurationError
from include.annotation.service import open_service


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0, or 2 with a message when the service is not set up to do what was asked."""
    os.umask(0o077)
    options = _parser().parse_args(arguments)
    try:
        return _add_account(options) if options.command == "add-account" else _serve()
    except ConfigurationError as error:
        print(f"annotation service: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m include.annotation", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("serve", help="run the service (also without a command); set up by ANNOTATION_* variables")
    add = commands.add_parser("add-account", help="add an account to ANNOTATION_TOKENS_FILE and hand out its token once")
    add.add_argument("name")
    add.add_argument("--role", required=True, choices=ROLES)
    add.add_argument("--kind", choices=("human", "demo", "verifier", "judge"), help="what labels are marked as (default: by role)")
    add.add_argument("--display-name", default="")
    add.add_argument("--token-out", type=Path, help="write the token to this file (mode 0600) instead of showing it")
    again = add.add_mutually_exclusive_group()
    again.add_argument("--rotate", action="store_true", help="the account is there: give it a new token, the old one ends")
    again.add_argument("--if-missing", action="store_true", help="leave an account alone that is there with its token file")
    return parser


def _add_account(options: argparse.Namespace) -> int:
    path = configuration.tokens_file()
    new = NewAccount(options.name, options.role, options.kind, options.display_name)
    known = find_account(read_accounts(path), new.account) if options.if_missing and path.exists() else None
    if known and options.token_out and _holds_token_of(options.token_out, known, new):
        return 0
    # A token is kept nowhere else: one whose file is lost can only be replaced.
    token = add_account(path, new, rotate=options.rotate or known is not None)
    if options.token_out:
        write_private(options.token_out, token.encode())
    else:
        print(token)
    return 0


def _holds_token_of(token_file: Path, known: Account, new: NewAccount) -> bool:
    if not token_file.exists():
        return False
    return new.with_token(token_file.read_text("utf-8").strip()) == replace(known, display_name=new.display_name or new.account)


def _serve() -> int:
    config = configuration.from_environment()
    app = create_app(open_service(config))
    uvicorn.run(app, host=config.host, port=config.port, server_header=False, log_level="info")
    return 0


if __name__ == "__main__":
    sys.exit(main())
