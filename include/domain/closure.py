"""Code revision: a hash over what a program really imports of ours, and the lock file of its environment.

Our own modules count as their AST without docstrings, so a comment or a reworded docstring moves no key, and a metric
that SFT never imports leaves SFT's key alone. Dynamic imports are refused: they would be outside the hash.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from include.domain.canonical import digest, sha256_bytes
from include.domain.errors import SpecError

ROOT_PACKAGE = "include"
_DYNAMIC = {"import_module", "__import__", "exec", "eval", "run_module", "run_path"}


def import_closure(project: Path, module: str) -> Mapping[str, Path]:
    """Module name → file, for every module of ours that `module` imports, directly or not, itself included.

    Raises:
        SpecError: a module that is not there, or one that imports by a computed name.
    """
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        path = _file_of(project, name)
        if path is None:
            raise SpecError(f"{name} is imported but is not a module below {project / ROOT_PACKAGE}")
        found[name] = path
        waiting.extend(_parents(name))
        tree = ast.parse(path.read_text("utf-8"), str(path))
        _refuse_dynamic(tree, path)
        waiting.extend(target for target in _imports(tree, project, name, path) if target not in found)
    return dict(sorted(found.items()))


def _file_of(project: Path, name: str) -> Path | None:
    stem = project.joinpath(*name.split("."))
    for path in (stem.with_suffix(".py"), stem / "__init__.py"):
        if path.is_file():
            return path
    return None


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]


def _imports(tree: ast.AST, project: Path, name: str, path: Path) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] == ROOT_PACKAGE)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise SpecError(f"{path}:{node.lineno}: relative import; write it in full, so that the closure is plain")
            source = node.module or ""
            if source.split(".")[0] != ROOT_PACKAGE:
                continue
            yield source
            yield from (f"{source}.{a.name}" for a in node.names if _file_of(project, f"{source}.{a.name}"))


def _refuse_dynamic(tree: ast.AST, path: Path) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
            builtin = isinstance(called, ast.Name) or name in ("import_module", "run_module", "run_path")
            if name in _DYNAMIC and builtin:
                raise SpecError(f"{path}:{node.lineno}: {name}() is outside the code revision; import statically")


def _strip_docstrings(tree: ast.AST) -> ast.AST:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
                node.body = node.body[1:] or [ast.Pass()]
    return tree


def module_digest(path: Path) -> str:
    """sha256 over the module's AST without docstrings, comments and positions."""
    tree = _strip_docstrings(ast.parse(path.read_text("utf-8"), str(path)))
    return sha256_bytes(ast.dump(tree, annotate_fields=True, include_attributes=False).encode())


def code_revision(project: Path, program: str, lock: Path) -> str:
    """The code revision of a stage whose entry program is the module `program`; `lock` is its pinned requirements."""
    modules = {name: module_digest(path) for name, path in import_closure(project, program).items()}
    return digest("code-revision", {"modules": modules, "lock": lock_digest(lock)})


def lock_digest(lock: Path) -> str:
    """sha256 of the pinned requirements, as they are: names ``env/<hex>`` in the store."""
    return sha256_bytes(lock.read_bytes())
