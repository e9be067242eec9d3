"""What an item of a suite can be sliced by."""

from include.domain.records import SuiteItem


def item_slices(item: SuiteItem) -> dict[str, str]:
    """The item's own slices, and of its prompt language, topic, safety_class and, with a reference, the verifier."""
    prompt = item.prompt
    of_prompt = {"language": prompt.language, "topic": prompt.topic, "safety_class": prompt.safety_class}
    of_reference = {} if prompt.reference is None else {"verifier": prompt.reference.verifier}
    return {key: str(value) for key, value in {**of_prompt, **of_reference, **(item.slices or {})}.items()}
