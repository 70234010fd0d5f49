"""`make mutants`: how many of the changes that mutmut made were noticed, by module.

It fails if fewer than 85 % were.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ENOUGH = 0.85
_SURVIVED, _NO_TESTS = 0, 33  # exit codes; in every other case something has failed or hung


def main() -> int:
    """Print the score of each module and of all; 0 if it is high enough."""
    killed = total = 0
    for path in sorted(Path("mutants/langchain_cursor").rglob("*.meta")):
        codes = json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"].values()
        tried = [code for code in codes if code is not None]
        noticed = sum(code not in (_SURVIVED, _NO_TESTS) for code in tried)
        if tried:
            print(f"{path.stem:22} {noticed:5} of {len(tried):5}  {noticed / len(tried):6.1%}")
        killed, total = killed + noticed, total + len(tried)
    score = killed / total if total else 0.0
    print(f"{'all':22} {killed:5} of {total:5}  {score:6.1%}")
    return 0 if score >= ENOUGH else 1


if __name__ == "__main__":
    sys.exit(main())
