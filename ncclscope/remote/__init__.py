"""Diagnose rings on many nodes without copying them.

Each node server summarises its rings: each rank's identity, and for each communicator the number
of calls, the running hash and the newest calls. The client compares hashes. It requests more
hashes only where they differ, and calls only around a difference. The analysis is the same as on
one machine; only the source of a log's data differs.

================== =========================================================================
module             contents
================== =========================================================================
spelling           wire format: calls as columns of numbers, compressed
node_server        a node: summarises its rings and answers queries
reporter           a node of a watched job: reports what changed in its rings
keeper             a node: both of these, whatever the way to it
fleet              the client side: queries all nodes in parallel
ray_client         reaches keepers through Ray actors
program_client     reaches keepers through ssh or srun, one program for each host
connection         such a program, its pipes and open requests
frames             messages on pipes
pipe_server        a node: a keeper behind stdin and stdout
logs               logs and trails that query their node
run                a run made of such logs
rings              the rings of all nodes of a watched job
cursor             cursors of these rings
================== =========================================================================
"""
