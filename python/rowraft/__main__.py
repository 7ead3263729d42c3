"""``python -m rowraft`` is the program rowraft of the wheel: ``python -m rowraft table list --certs …``."""

import os
import sys

from rowraft._local import find_program

program = find_program()
os.execv(program, ["rowraft", *sys.argv[1:]])
