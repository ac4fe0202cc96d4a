"""The rebalancer, pure: no clock, no I/O, no randomness, standard library only.

Start reading in `rebalancer`, which opens with the theory and dispatches each command (`commands`)
to `binding`, `working` or `administering`; these set the `loop` going, which asks `assignment` what
to grant and hand off. What they decide are `records`, and `replay` alone applies those to a `queue`
(made of what is in `model`), along the legal changes of state in `transitions`.
"""
