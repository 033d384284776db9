"""GPT-2 in NumPy, one file per layer: what kernels are judged against, and rung 0 of every ladder.

Functions take arrays in the order of the op's contract (ladder/<layer>/ops.py), outputs first, and
write them in place. They work in float64, which checks use, and in float32, which trains.
"""
