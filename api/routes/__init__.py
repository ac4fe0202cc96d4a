"""The calls, by what they are about: parse, ask the broker, render."""
