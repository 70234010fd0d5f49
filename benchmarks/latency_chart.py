"""Draws horizontal bars as SVG that reads well on light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH = 820
_MARGIN = 20
_LABELS = 290  # where the bars begin
_BARS = 450  # length of the longest one
_ROW = 28
_BAR = 16

# The background is drawn too: a page may be light where the system is dark.
_STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; }
  .page { fill: #ffffff; stroke: #d1d9e0; }
  .text { fill: #1f2328; }
  .note { fill: #59636e; font-size: 11px; }
  .title { font-weight: 600; font-size: 15px; }
  .group { font-weight: 600; }
  .model { fill: #c3ccd5; }
  .ours { fill: #0969da; }
  .other { fill: #bf5b00; }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; stroke: #3d444d; }
    .text { fill: #f0f6fc; }
    .note { fill: #9198a1; }
    .model { fill: #48515c; }
    .ours { fill: #4493f8; }
    .other { fill: #e3893c; }
  }
"""


@dataclass(frozen=True)
class Bar:
    """One time.

    Args:
        label: What took it.
        seconds: How long, the model's part included.
        ours: Whether it is this package's.
    """

    label: str
    seconds: float
    ours: bool


@dataclass(frozen=True)
class Group:
    """Bars under a heading."""

    heading: str
    bars: Sequence[Bar]


def draw(title: str, groups: Sequence[Group], *, model: float, notes: Sequence[str]) -> str:
    """Draw bars whose first part, the model's own time, is set off from the rest.

    Args:
        title: Stands above.
        groups: The bars.
        model: Seconds of every bar that the model takes.
        notes: Stand below, one a line.

    Example:
        >>> svg = draw("Seconds", [Group("A", [Bar("b", 2.5, ours=True)])], model=2.0, notes=[])
        >>> svg.count('class="ours"'), "2.50" in svg
        (2, True)
    """
    scale = _BARS / max(bar.seconds for group in groups for bar in group.bars)
    parts = []
    y = _MARGIN + 14
    parts.append(_text(_MARGIN, y, title, "text title"))
    for group in groups:
        y += _ROW + 8
        parts.append(_text(_MARGIN, y, group.heading, "text group"))
        for bar in group.bars:
            y += _ROW
            kind = "ours" if bar.ours else "other"
            middle, end = (_LABELS + seconds * scale for seconds in (model, bar.seconds))
            parts.append(_text(_LABELS - 10, y, bar.label, "text", anchor="end"))
            parts.append(_rect(_LABELS, y, middle, "model"))
            parts.append(_rect(middle, y, end, kind))
            parts.append(_text(end + 8, y, f"{bar.seconds:.2f}", "text"))
    y += _ROW + 10
    x = _LABELS
    for label, kind in (("the model", "model"), ("ChatCursor", "ours"), ("bare SDK", "other")):
        parts.append(_rect(x, y, x + 14, kind))
        parts.append(_text(x + 20, y, label, "text"))
        x += 120
    y += 10
    for note in notes:
        y += 16
        parts.append(_text(_MARGIN, y, note, "note"))
    height = y + _MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
            f'width="{_WIDTH}" height="{height}" role="img" aria-label="{escape(title)}">',
            f"<style>{_STYLE}</style>",
            f'<rect class="page" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" '
            'rx="6"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _rect(start: float, y: float, end: float, kind: str) -> str:
    return (
        f'<rect class="{kind}" x="{start:.1f}" y="{y - _BAR + 4:.1f}" '
        f'width="{max(end - start, 0):.1f}" height="{_BAR}"/>'
    )
