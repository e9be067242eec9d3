"""Great Expectations, called directly: an ephemeral context, one suite a table, and its data docs as plain files.

Tried on 1.24.1: a table of no rows, a suite without expectations and a column that is mostly null all pass there. So a floor and
not-null are in every suite here, an expectation that looked at nothing is a failure, and one that raised is *could not check*.
"""

import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from include.data.errors import DataError
from include.data.expectations import Expect, Own, Table
from include.data.regex_time import stands_still
from include.data.report import Check, ValidationOutcome, outcome_of

_SITE = "report"
_CLASSES = {
    "not_null": "ExpectColumnValuesToNotBeNull",
    "unique": "ExpectColumnValuesToBeUnique",
    "in_set": "ExpectColumnValuesToBeInSet",
    "between": "ExpectColumnValuesToBeBetween",
}


def run_expectations(tables: Sequence[Table], docs: Path, *, pages_if_passed: bool = True) -> tuple[Check, ...]:
    """Evaluates all tables and writes the data docs below `docs`, where all passed only if asked to."""
    # Read at import: without it the library reports its use to a server of its maker.
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    import great_expectations as gx

    docs.mkdir(parents=True, exist_ok=True)
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    # The context makes a site of its own in a temporary folder, which nobody would remove.
    for name, site in dict(context.variables.data_docs_sites or {}).items():
        context.delete_data_docs_site(name)
        shutil.rmtree(site["store_backend"]["base_directory"], ignore_errors=True)
    context.add_data_docs_site(_SITE, _site(docs))
    source = context.data_sources.add_pandas("tables")
    checks = [check for table in tables for check in _run(gx, context, source, table)]
    if pages_if_passed or outcome_of(checks) is not ValidationOutcome.PASSED:
        context.build_data_docs(site_names=[_SITE])
    return tuple(checks)


def _site(docs: Path) -> dict[str, Any]:
    return {
        "class_name": "SiteBuilder",
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(docs)},
    }


def _run(gx: Any, context: Any, source: Any, table: Table) -> Iterator[Check]:
    import pandas as pd

    slow = {number: words for number, own in enumerate(table.own) if (words := _too_slow(table, own))}
    frame = pd.DataFrame({name: pd.Series(list(values), dtype=object) for name, values in table.columns.items()})
    batch = source.add_dataframe_asset(table.name).add_batch_definition_whole_dataframe("all")
    suite = context.suites.add(gx.ExpectationSuite(name=table.name, expectations=list(_expectations(gx, table, slow))))
    definition = context.validation_definitions.add(gx.ValidationDefinition(name=table.name, data=batch, suite=suite))
    checkpoint = context.checkpoints.add(
        gx.Checkpoint(name=table.name, validation_definitions=[definition], actions=[], result_format={"result_format": "SUMMARY"})
    )
    ended = checkpoint.run(batch_parameters={"dataframe": frame})
    results = [result for run in ended.run_results.values() for result in run.results]
    if len(results) != len(suite.expectations):
        said = f"{len(suite.expectations)} expectations were asked for, {len(results)} results came"
        yield Check(table.name, "nothing evaluated", None, ValidationOutcome.FAILED, 0, said)
    for number, words in slow.items():
        own = table.own[number]
        yield Check(table.name, own.kind, own.columns[0], ValidationOutcome.COULD_NOT_CHECK, 0, words + _why(own))
    for result in results:
        yield _check(table, result)


def _too_slow(table: Table, own: Own) -> str:
    """That a regular expression stands still on a row, in words: the library would search with it in this very process. Empty where none does."""
    regex, values = own.arguments.get("regex"), table.columns.get(own.columns[0])
    if regex is None or values is None:
        return ""
    rows = [at for at, value in enumerate(values) if value is not None]
    try:
        stood = stands_still(regex, [str(values[at]) for at in rows])
    except DataError as error:
        return f"regular expression {regex!r:.120} could not be tried: {error}"
    if stood is None:
        return ""
    row = table.columns.get("row", range(table.rows))[rows[stood.row]]
    return (
        f"regular expression {regex!r:.120} took longer than {stood.seconds:g} s, and stood at row {row} ({stood.row + 1} of {len(rows)}): "
        "write it without a repetition within a repetition"
    )


def _why(own: Own) -> str:
    return f" ({own.why})" if own.why else ""


def _expectations(gx: Any, table: Table, left_out: Collection[int]) -> Iterator[Any]:
    yield gx.expectations.ExpectTableRowCountToBeBetween(min_value=table.min_rows)
    for number, own in enumerate(table.own):
        if number not in left_out:
            yield _own_expectation(gx, own, number)
    for column in table.columns if not table.own else ():
        yield _expectation(gx, Expect("not_null", column, {}))
    for expect in table.expected:
        yield _expectation(gx, expect)


def _expectation(gx: Any, expect: Expect) -> Any:
    return getattr(gx.expectations, _CLASSES[expect.kind])(column=expect.column, **expect.arguments)


def _own_expectation(gx: Any, own: Own, number: int) -> Any:
    """`number`, its place in the table, comes back with the result."""
    name = "".join(word.capitalize() for word in own.kind.split("_"))
    of = {"column_list": list(own.columns)} if len(own.columns) > 1 else {"column": own.columns[0]}
    return getattr(gx.expectations, name)(**of, **own.arguments, meta={"own": number}, notes=own.why or None)


def _check_own(table: Table, own: Own, result: Any) -> Check:
    """As `_check`, for any kind: what was looked at is counted here, as kinds that look at a whole column do not say it."""
    column = ", ".join(own.columns)
    why = _why(own)
    if raised := _raised(result.exception_info):
        return Check(table.name, own.kind, column, ValidationOutcome.COULD_NOT_CHECK, 0, raised + why)
    values = zip(*(table.columns[name] for name in own.columns), strict=True)
    evaluated = table.rows if own.kind.endswith("not_be_null") else sum(None not in row for row in values)
    if evaluated == 0:
        return Check(table.name, own.kind, column, ValidationOutcome.FAILED, 0, f"nothing evaluated: no value to look at{why}")
    seen = result.result or {}
    if "observed_value" in seen:
        some = sorted({str(value)[:80] for value in table.columns[own.columns[0]]})[:3]
        words = f"observed {str(seen['observed_value'])[:160]}" if seen["observed_value"] is not None else f"values such as {some}"
    else:
        words = _words(seen, evaluated)
    outcome = ValidationOutcome.PASSED if result.success else ValidationOutcome.FAILED
    return Check(table.name, own.kind, column, outcome, evaluated, f"{words}; asked for: {dict(own.arguments)}{why}")


def _check(table: Table, result: Any) -> Check:
    config, seen = result.expectation_config, result.result or {}
    if (number := (config.meta or {}).get("own")) is not None:
        return _check_own(table, table.own[int(number)], result)
    column, name = config.kwargs.get("column"), str(config.type)
    if raised := _raised(result.exception_info):
        return Check(table.name, name, column, ValidationOutcome.COULD_NOT_CHECK, 0, raised)
    if column is None:
        outcome = ValidationOutcome.PASSED if result.success else ValidationOutcome.FAILED
        return Check(table.name, name, None, outcome, 1, f"{seen.get('observed_value')} rows, at least {table.min_rows} expected")
    # Not-null looks at every value, the others at those that are not null.
    evaluated = int(seen.get("element_count", 0)) - int(seen.get("missing_count", 0) or 0)
    if evaluated == 0:
        return Check(table.name, name, column, ValidationOutcome.FAILED, 0, "nothing evaluated: no value to look at")
    outcome = ValidationOutcome.PASSED if result.success else ValidationOutcome.FAILED
    return Check(table.name, name, column, outcome, evaluated, _words(seen, evaluated))


def _words(seen: Mapping[str, Any], evaluated: int) -> str:
    unexpected = int(seen.get("unexpected_count", 0) or 0)
    if not unexpected:
        return f"all of {evaluated} values as expected"
    counted = seen.get("partial_unexpected_counts") or []
    shown = ", ".join(str(item["value"])[:160] for item in counted[:3])
    return f"{unexpected} of {evaluated} values unexpected: {shown}"


def _raised(info: Any) -> str | None:
    """The exception's text: the information is flat when nothing was raised, and one entry a metric otherwise."""
    if not isinstance(info, Mapping):
        return None
    if info.get("raised_exception"):
        return str(info.get("exception_message"))
    for item in info.values():
        if isinstance(item, Mapping) and item.get("raised_exception"):
            return str(item.get("exception_message"))
    return None
