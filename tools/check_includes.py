#!/usr/bin/env python3
"""Includes between rooms go down only, and neighbours on one level do not include each other.

Exit code 1 and one line per offence. Also refuses a room that this list does not know.
"""

import pathlib
import re
import sys

LEVELS = [
    {"base", "numerics"},
    {"machine", "tensor", "text"},
    {"io", "net", "kernels"},
    {"checkpoints", "kvcache"},
    {"model"},
    {"advisor", "quantize", "runtime"},
    {"eval", "server", "plugin"},
    {"cli"},
]
LEVEL = {room: i for i, rooms in enumerate(LEVELS) for room in rooms}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def is_test_header(root, included):
    """A header that uses the helpers of src/testing serves tests only, and so may be included by tests only."""
    path = root / included
    return path.exists() and '#include "testing/' in path.read_text()


def offences(root):
    for path in sorted(root.rglob("*")):
        if path.suffix not in (".h", ".cpp"):
            continue
        room = path.relative_to(root).parts[0]
        name = path.relative_to(root.parent)
        if room == "testing":
            continue
        if room not in LEVEL:
            yield f"{name}: room '{room}' is not in the order of tools/check_includes.py"
            continue
        is_source = path.suffix == ".cpp" and not path.name.endswith("_test.cpp")
        for included in INCLUDE.findall(path.read_text()):
            target = included.split("/")[0]
            if "/" not in included or not (root / included).exists():
                if not (root.parent / "include" / included).exists():
                    yield f'{name}: "{included}" is no header under src/ or include/; write it from src/'
            elif is_source and (target == "testing" or is_test_header(root, included)):
                yield f'{name}: "{included}" is for tests only'
            elif target not in (room, "testing") and LEVEL[target] >= LEVEL[room]:
                relation = "a neighbour" if LEVEL[target] == LEVEL[room] else "above"
                yield f'{name}: "{included}": {target} is {relation}, includes go down only'


def main():
    found = list(offences(pathlib.Path(__file__).resolve().parent.parent / "src"))
    for line in found:
        print("error: " + line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
