#!/usr/bin/env python3
"""Joins a raw WikiText file as the stored perplexities were made: lines keep their end, blank ones become empty, all
are joined by two newlines. Usage: join_wikitext.py wiki.test.raw > joined.txt"""
import sys

with open(sys.argv[1], encoding="utf-8") as f:
    rows = f.read().split("\n")
if rows and rows[-1] == "":
    rows.pop()
sys.stdout.write("\n\n".join(row + "\n" if row.strip() else "" for row in rows))
