"""`python -m ortmodule_py`: the command line."""

import sys

from ortmodule_py.commands import main

if __name__ == "__main__":
    sys.exit(main())
