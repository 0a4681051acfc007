"""Finish reasons of responses, in the members of all APIs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["finish_reason"]


def finish_reason(response: Mapping[str, Any]) -> str | None:
    """Return the finish reason in a response or in one event of a stream.

    Parameters
    ----------
    response : mapping
        A decoded response or event of chat completions, plain completions, OpenAI's Responses, Anthropic's Messages or
        llama.cpp's ``/completion``.

    Returns
    -------
    str or None
        The reason as reported, for example ``"stop"``, ``"end_turn"`` or ``"max_output_tokens"``. None if there is no reason.

    Examples
    --------
    >>> finish_reason({"choices": [{"finish_reason": "stop"}]}), finish_reason({"stop_reason": "end_turn"}), finish_reason({})
    ('stop', 'end_turn', None)
    """
    choices, details, status = response.get("choices"), response.get("incomplete_details"), response.get("status")
    choice = choices[0] if isinstance(choices, list) and choices else None
    reasons = [
        choice.get("finish_reason") if isinstance(choice, dict) else None,
        response.get("stop_reason"),
        response.get("stop_type"),
        details.get("reason") if isinstance(details, dict) else None,
        status if response.get("object") == "response" and status in ("completed", "incomplete") else None,
    ]
    return next((reason for reason in reasons if reason and isinstance(reason, str)), None)
