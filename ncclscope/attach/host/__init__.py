"""What the host knows of the processes: its log, their connections, their shared memory."""
