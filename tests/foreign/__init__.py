"""Programs that were written without any thought of ncclscope: ``make test-foreign``.

torch's own distributed tests lie in its wheel
(``torch.testing._internal.distributed.distributed_test``). Each has to end the same way under
``ncclscope run`` as without it, and where it passes, ``ncclscope diagnose`` may raise no alarm
over its rings. The programs beside them use what users train with; ``ncclscope watch`` runs
while they run.
"""
