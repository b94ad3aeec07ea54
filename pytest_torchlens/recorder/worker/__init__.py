"""The recorder process: draws frames and writes files, and ends when the training process ends.

It runs without torch, so that it starts at once.  It imports packages for drawing and writing on first use.
"""
