"""Writes reproductions: a file of torch alone that shows what differs between two environments (``pytest-lens repro``).

`program` takes the accused calls out of a recording, `statements` prints them, `script` makes the file; `trials` runs
programs in both environments, `search` finds the shortest run of calls that differs, `shrink` makes its inputs smaller.
"""
