"""`python -m broker.demo`: the demo without the command line of counterpoise."""

import sys

from broker.demo import main

sys.exit(main())
