"""The process beside: draws frames and writes files, and ends when the one that records does.

It needs no torch, so that it starts at once, and imports what draws and writes only when asked for that.
"""
