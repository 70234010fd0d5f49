"""`python -m langchain_cursor`: the command `langchain-cursor`."""

import sys

from langchain_cursor.cli import main

if __name__ == "__main__":
    sys.exit(main())
