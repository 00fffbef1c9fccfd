"""Answer questions of agents and other programs, over the Model Context Protocol."""
