"""`python -m counterpoise.demo`: the demo without the command line of counterpoise."""

import sys

from counterpoise.demo import main

sys.exit(main())
