"""The judge of the handbook's exercises: `python practice/judge.py` shows where you are."""

import sys

from kvpipe_practice.cli import main

if __name__ == "__main__":
    sys.exit(main())
