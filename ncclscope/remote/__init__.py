"""Rings of many nodes, examined where they are.

A node reduces its rings to what is asked of every rank: who it is, how far each communicator has
come and under which running hash, and the calls at its end. The centre compares hashes, asks for
more of them only where they differ, and for calls only around a difference. The analysis is the
same as on one machine; what differs is where a log has its answers from.

================== =========================================================================
module             what it knows
================== =========================================================================
spelling           calls as columns of numbers, packed
depot              a node: reduces its rings, and answers
fleet              the centre: asks nodes, all at once, and keeps what they said
logs               logs and trails that ask
run                a run of such logs
================== =========================================================================
"""
