"""Plays a brain's script on the stream of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from typing import Literal

from ._agent_protocol import encode_end, encode_step
from ._http import HttpConnection
from .runs import (
    Brain,
    Delay,
    Drop,
    Error,
    Garbage,
    Hang,
    ReceivedRun,
    Step,
    Text,
    Thinking,
    Usage,
    to_steps,
)

_BATCH_BYTES = 16 * 1024


@dataclass(frozen=True)
class Played:
    """How a script ended.

    Attributes:
        outcome: `dropped` means that the connection is to be cut.
        last: What is still to be sent, the end of the stream included.
        brain_error: What the brain raised.
    """

    outcome: Literal["finished", "error", "dropped"]
    last: bytes = b""
    brain_error: BaseException | None = None


async def play(
    brain: Brain,
    run: ReceivedRun,
    stream: HttpConnection,
    *,
    first_token: float = 0.0,
    per_token: float = 0.0,
) -> Played:
    """Asks the brain and sends its steps, one frame each; frames that are ready share a write.

    The brain is called on this event loop. What it raises ends the run with code `internal`.
    The end of the stream is left to the caller, who notes it before the other side can know it.

    Args:
        brain: Gives the script.
        run: What the brain is asked.
        stream: Where the frames go; its head has been sent.
        first_token: Seconds to wait before the first text or thinking.
        per_token: Seconds to wait before each further one.
    """
    script = _encode_script(brain, run)
    ready = bytearray()
    pause = first_token

    async def send_ready() -> None:
        data = bytes(ready)
        ready.clear()
        await stream.write(data)

    try:
        while True:
            try:
                step, frame = next(script)
            except StopIteration:
                return Played("finished", bytes(ready) + encode_end())
            except BaseException as error:  # `pytest.fail` raises more than an Exception
                failure = encode_end("internal", f"the brain failed: {error!r}")
                return Played("error", bytes(ready) + failure, error)
            match step:
                case Text() | Thinking():
                    if pause:
                        await send_ready()
                        await asyncio.sleep(pause)
                    pause = per_token
                case Delay(seconds):
                    await send_ready()
                    await asyncio.sleep(seconds)
                case Hang():
                    await send_ready()
                    await asyncio.Event().wait()
                case Drop():
                    await send_ready()
                    return Played("dropped")
                case Error(code, message):
                    return Played("error", bytes(ready) + encode_end(code, message))
            ready += frame
            if len(ready) >= _BATCH_BYTES:
                await send_ready()
    finally:
        script.close()  # so that the `finally` of a generator brain runs now


def _encode_script(brain: Brain, run: ReceivedRun) -> Generator[tuple[Step, bytes], None, None]:
    """The steps with their frames (empty for those that only act), and usage if none is given."""
    answer = []
    counted = False
    for step in to_steps(brain(run)):
        match step:
            case Delay() | Hang() | Drop() | Error():
                yield step, b""
            case Garbage(data):
                yield step, data
            case _:
                if isinstance(step, Text):
                    answer.append(step.delta)
                counted = counted or isinstance(step, Usage)
                yield step, encode_step(step)
    if not counted:
        usage = Usage(_count_words(run.text), _count_words("".join(answer)))
        yield usage, encode_step(usage)


def _count_words(text: str) -> int:
    return len(text.split())
