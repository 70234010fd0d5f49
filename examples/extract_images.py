"""Structured data out of a folder of images, all at once: `python extract_images.py [FOLDER]`.

Without a folder it draws three little flags and takes those.
"""

from __future__ import annotations

import base64
import struct
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from account import account
from langchain_core.messages import HumanMessage
from pydantic import BaseModel, Field

from langchain_cursor import ChatCursor

TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp"}
FLAGS = {
    "france": [(0, 38, 84), (255, 255, 255), (237, 41, 57)],
    "ireland": [(22, 155, 98), (255, 255, 255), (255, 136, 62)],
    "italy": [(0, 146, 70), (255, 255, 255), (206, 43, 55)],
}


class Picture(BaseModel):
    """What a picture shows."""

    title: str = Field(description="What it shows, in a few words")
    colours: list[str] = Field(description="The colours from left to right")


def ask_about(path: Path) -> list[HumanMessage]:
    """A question about an image, with the image."""
    image = {
        "type": "image",
        "base64": base64.b64encode(path.read_bytes()).decode(),
        "mime_type": TYPES[path.suffix.lower()],
    }
    text = {"type": "text", "text": "What does this picture show?"}
    return [HumanMessage([text, image])]


def extract(llm: ChatCursor, folder: Path) -> dict[str, Picture | Exception]:
    """What each image of a folder shows; where that fails, why."""
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in TYPES)
    pictures = llm.with_structured_output(Picture).batch(
        [ask_about(path) for path in paths],
        {"max_concurrency": 8},
        return_exceptions=True,  # one that fails does not stop the others
    )
    return {path.name: picture for path, picture in zip(paths, pictures, strict=True)}


def flag(colours: list[tuple[int, int, int]], width: int = 48, height: int = 32) -> bytes:
    """A PNG of vertical stripes."""
    row = b"\0" + b"".join(bytes(colours[x * len(colours) // width]) for x in range(width))
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(row * height)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


@contextmanager
def flags() -> Iterator[Path]:
    """A folder of little flags."""
    with tempfile.TemporaryDirectory() as folder:
        for name, colours in FLAGS.items():
            Path(folder, f"{name}.png").write_bytes(flag(colours))
        yield Path(folder)


def main(folder: str | None = None) -> None:
    """Print what the images of a folder show."""
    with account() as arguments, ChatCursor(**arguments) as llm:
        if folder is not None:
            found = extract(llm, Path(folder))
        else:
            with flags() as drawn:
                found = extract(llm, drawn)
    for name, picture in found.items():
        print(f"{name}: {picture}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
