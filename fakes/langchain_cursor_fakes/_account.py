"""What the stand-ins agree on about a Cursor account."""

from __future__ import annotations

DEFAULT_MODELS = ("composer-2.5", "auto")
"""Ids of the models in the default catalog."""

SYSTEM_PROMPT_REFUSAL = (
    "Custom system prompt is not enabled for this account. "
    "Contact Cursor support to request access."
)
"""What Cursor's cloud says when an account may not set a system prompt (seen with SDK 1.1.0)."""
