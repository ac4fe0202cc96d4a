"""`python -m counterpoise_demo`: the demo without the command line of counterpoise."""

import sys

from counterpoise_demo import main

sys.exit(main())
