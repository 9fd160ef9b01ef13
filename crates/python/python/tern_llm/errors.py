"""What a request fails with."""

from __future__ import annotations

import json
from typing import Any

from ._native import Error


class RequestError(Error):
    """A request that was refused or has failed, with what the server would respond.

    >>> from tern_llm import Model, RequestError
    >>> try:
    ...     Model("stories").generate("Once", temperature=3)
    ... except RequestError as error:
    ...     print(error.status, error.param, error)
    400 temperature temperature: expected a number from 0 to 2, got 3
    """

    #: The status code: 4xx if the request is at fault.
    status: int
    #: The ``error`` object of the response.
    body: dict[str, Any]

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(status, body)
        self.status = status
        self.body = body

    def __str__(self) -> str:
        return str(self.body.get("message", f"status {self.status}"))

    @property
    def code(self) -> str | None:
        """What happened, such as ``context_length_exceeded``."""
        return self.body.get("code")

    @property
    def param(self) -> str | None:
        """The parameter that is at fault."""
        return self.body.get("param")


def request_error(status: int, text: bytes) -> RequestError:
    """The error of a response that is one."""
    try:
        error = json.loads(text)
        error = error.get("error", error)
    except (ValueError, AttributeError):
        error = text.decode(errors="replace")
    return RequestError(status, error if isinstance(error, dict) else {"message": str(error)})
