"""The pure core: decides, replays; no clock, no I/O, no randomness, no async."""
