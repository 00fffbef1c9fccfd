"""Is a program's sequence of collectives the same: on another rank, in another run, as stored?"""
