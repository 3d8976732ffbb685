"""Whether ``train(job)`` has raised by itself on a host, or because of another host."""

from __future__ import annotations

from meshfeed.pipeline.plan.errors import FeedError, StaleGenerationError, StallError


def is_consequence(error: BaseException | None) -> bool:
    """Whether an error may come from the loss or the failure of another host."""
    if isinstance(error, FeedError | StallError | StaleGenerationError):
        return True
    return any(cls.__name__ == "JaxRuntimeError" for cls in type(error).__mro__)


def in_words(error: BaseException | None) -> str:
    """An error on one line; its notes as well."""
    notes = getattr(error, "__notes__", [])
    return "; ".join([f"{type(error).__name__}: {error}", *notes]).replace("\n", " ")
