"""`python -m counterpoise.cli`: the command line without the script."""

from counterpoise.cli import main

main()
