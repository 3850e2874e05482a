#!/usr/bin/env python3
"""No object of an instruction-set folder may define a weak symbol.

The linker keeps one of several equal weak definitions: an inline function compiled with AVX-512 could then be the one
that runs on a CPU without it. Usage: check_weak_symbols.py BUILD_FOLDER.
"""

import pathlib
import subprocess
import sys

ALLOWED_PREFIXES = ("DW.ref.",)  # a pointer for exception tables: data, no code
FOLDERS = ("/cpu/avx2/", "/cpu/avx512vnni/")


def main():
    objects = [p for p in pathlib.Path(sys.argv[1]).rglob("*.o") if any(f in str(p) for f in FOLDERS)]
    objects = [p for p in objects if not p.name.endswith("_test.cpp.o")]
    bad = 0
    for path in sorted(objects):
        symbols = subprocess.run(["nm", "--defined-only", str(path)], stdout=subprocess.PIPE, check=True, text=True)
        for line in symbols.stdout.splitlines():
            _, kind, name = line.split(maxsplit=2)
            if kind in "WVuwv" and not name.startswith(ALLOWED_PREFIXES):
                readable = subprocess.run(["c++filt", name], stdout=subprocess.PIPE, check=True, text=True).stdout
                print(f"error: weak symbol in {path}: {readable.strip()}")
                bad += 1
    print(f"{len(objects)} objects of instruction-set folders, {bad} weak symbols")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
